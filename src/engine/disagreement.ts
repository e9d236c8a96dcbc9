/**
 * Warns when the replicas that run batches differ in their upstreams. A difference may be meant, such as models that
 * only some machines can reach. Most often a configuration was changed in one place only.
 *
 * A change reaches the replicas one after the other. So a difference is reported when it is there in two checks in a row,
 * and once.
 */
import type { Log } from "../telemetry/log.ts";
import type { TargetReport } from "../upstream/upstream.ts";

/** A replica that runs batches. */
export interface Configured {
  readonly owner: string;
  readonly targets: readonly Pick<TargetReport, "name" | "settings" | "limit">[];
}

export class Disagreement {
  readonly #log: Log;
  #latest = "";
  #reported = "";

  constructor(log: Log) {
    this.#log = log;
  }

  check(replicas: readonly Configured[]): void {
    const upstreams = differences(replicas);
    const seen = upstreams.join("; ");
    const isLasting = seen === this.#latest;
    this.#latest = seen;
    if (!isLasting || seen === this.#reported) return;
    this.#reported = seen;
    if (upstreams.length === 0) this.#log.info({}, "replicas.agree");
    else this.#log.warn({ upstreams }, "replicas.disagree");
  }
}

/** Describes each upstream that is not the same everywhere, in one sentence. */
export function differences(replicas: readonly Configured[]): string[] {
  const names = new Set(replicas.flatMap(({ targets }) => targets.map(({ name }) => name)));
  return [...names].sort().flatMap((name) => {
    const found = replicas.map(({ owner, targets }) => ({
      owner,
      target: targets.find((target) => target.name === name),
    }));
    const owners = (of: typeof found) => of.map(({ owner }) => owner).sort();
    const lacking = owners(found.filter(({ target }) => target === undefined));
    if (lacking.length > 0) return [`${name} is missing at ${lacking.join(", ")}`];
    const settings = new Set(found.map(({ target }) => target?.settings));
    const limits = new Set(found.flatMap(({ target }) => target?.limit ?? []));
    const isSame = settings.size === 1 && limits.size < 2;
    return isSame ? [] : [`${name} differs between ${owners(found).join(", ")}`];
  });
}
