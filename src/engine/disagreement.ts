/**
 * Warns when the replicas that run batches differ in their upstreams. A difference may be meant, such as models that
 * only some machines can reach. Most often a configuration was changed in one place only.
 *
 * A change reaches the replicas one after the other. So a difference is reported when it is there in two looks in a row,
 * and once.
 */
import type { Log } from "../telemetry/log.ts";
import type { TargetReport } from "../upstream/upstream.ts";

/** A replica that runs batches. */
export interface Configured {
  readonly owner: string;
  readonly targets: readonly Pick<TargetReport, "name" | "settings">[];
}

export class Disagreement {
  readonly #log: Log;
  #latest = "";
  #reported = "";

  constructor(log: Log) {
    this.#log = log;
  }

  look(replicas: readonly Configured[]): void {
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
    const settings = new Map(
      replicas.map(({ owner, targets }) => [
        owner,
        targets.find((target) => target.name === name)?.settings,
      ]),
    );
    const lacking = [...settings].filter(([, each]) => each === undefined).map(([owner]) => owner);
    if (lacking.length > 0) return [`${name} is missing at ${lacking.sort().join(", ")}`];
    const isSame = new Set(settings.values()).size === 1;
    return isSame ? [] : [`${name} differs between ${[...settings.keys()].sort().join(", ")}`];
  });
}
