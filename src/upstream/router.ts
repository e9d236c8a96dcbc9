/**
 * Decides which targets serve a public model name, and under which name each of them knows it.
 *
 * Targets that list a name serve it; only a name that no target lists goes to those with `"*"`. An operator therefore
 * keeps a model away from a catch-all target by listing it elsewhere.
 */
import type { UpstreamConfig } from "../config/upstreams.ts";

export const ANY_MODEL = "*";

/** The targets of a route, and a key that is equal for equal sets of them. */
export interface RoutePlan {
  readonly key: string;
  readonly targets: readonly string[];
}

export type ModelEntry = UpstreamConfig["models"][number];

const publicName = (entry: ModelEntry): string => (typeof entry === "string" ? entry : entry.name);

/** Maps each public model name to the target's name for it; null for the same name. */
export const upstreamNames = (entries: readonly ModelEntry[]): Map<string, string | null> =>
  new Map(
    entries.map((entry) => [
      publicName(entry),
      typeof entry === "string" ? null : (entry.upstream_model ?? null),
    ]),
  );

export class Router {
  readonly #byModel = new Map<string, RoutePlan>();
  readonly #any: RoutePlan | null;

  constructor(
    upstreams: readonly { readonly name: string; readonly models: readonly ModelEntry[] }[],
  ) {
    const targets = new Map<string, Set<string>>();
    for (const { name, models } of upstreams) {
      for (const model of models.map(publicName)) {
        targets.set(model, (targets.get(model) ?? new Set()).add(name));
      }
    }
    for (const [model, names] of targets) this.#byModel.set(model, planOf(names));
    this.#any = this.#byModel.get(ANY_MODEL) ?? null;
    this.#byModel.delete(ANY_MODEL);
  }

  find(model: string): RoutePlan | null {
    return this.#byModel.get(model) ?? this.#any;
  }

  /** The public names that targets list, each with its route. */
  get listed(): ReadonlyMap<string, RoutePlan> {
    return this.#byModel;
  }

  /** Holds one plan for each set of targets. */
  get plans(): RoutePlan[] {
    const all = [...this.#byModel.values(), ...(this.#any === null ? [] : [this.#any])];
    return [...new Map(all.map((plan) => [plan.key, plan])).values()];
  }
}

/** Names hold no comma, so the key is unambiguous. */
function planOf(names: ReadonlySet<string>): RoutePlan {
  const targets = [...names].sort();
  return { key: targets.join(","), targets };
}
