/**
 * Which targets serve a public model name, and by which name each of them knows it.
 *
 * Targets that list a name serve it; only a name that no target lists goes to those with `"*"`. Listing a
 * model is therefore also how it is kept away from a catch-all target.
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

/** Public model name → what the target calls it; null for the same name. */
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

  constructor(upstreams: readonly Pick<UpstreamConfig, "name" | "models">[]) {
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

  /** Public names that targets list, each with its route. */
  get listed(): ReadonlyMap<string, RoutePlan> {
    return this.#byModel;
  }

  /** One plan for each set of targets. */
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
