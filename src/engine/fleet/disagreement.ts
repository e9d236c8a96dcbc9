/**
 * Warns when the replicas that run batches differ in their upstreams, or any replicas in settings that are to be the same. A
 * difference may be meant, such as models that only some machines can reach. Most often a configuration was changed in one
 * place only.
 *
 * A change reaches the replicas one after the other. So a difference is reported when it is there in two checks in a row,
 * and once.
 */
import type { Log } from "../../telemetry/log.ts";
import type { TargetReport } from "../../upstream/target-report.ts";
import type { CommonSettings } from "./replica-report.ts";

export interface Configured {
  readonly owner: string;
  readonly isWorker: boolean;
  readonly targets: readonly Pick<TargetReport, "name" | "settings" | "limit">[];
  /** Older versions do not say. */
  readonly common?: Pick<CommonSettings, "hashes">;
}

export class Disagreement {
  readonly #log: Log;
  #latest = "";
  #reported = "";

  constructor(log: Log) {
    this.#log = log;
  }

  check(replicas: readonly Configured[]): void {
    const upstreams = differences(replicas.filter(({ isWorker }) => isWorker));
    const settings = differingSettings(replicas);
    const seen = [...upstreams, ...settings].join("; ");
    const isLasting = seen === this.#latest;
    this.#latest = seen;
    if (!isLasting || seen === this.#reported) return;
    this.#reported = seen;
    if (seen === "") this.#log.info({}, "replicas.agree");
    else this.#log.warn({ upstreams, settings }, "replicas.disagree");
  }
}

/** Describes each group of settings that is not the same at all replicas that have it, in one sentence. */
export function differingSettings(replicas: readonly Omit<Configured, "targets">[]): string[] {
  const hashesOf = ({ common }: (typeof replicas)[number]) => common?.hashes ?? {};
  const groups = new Set(replicas.flatMap((replica) => Object.keys(hashesOf(replica))));
  return [...groups].sort().flatMap((group) => {
    const having = replicas.filter((replica) => hashesOf(replica)[group] !== undefined);
    const byHash = Object.values(Object.groupBy(having, (each) => `${hashesOf(each)[group]}`));
    const owners = byHash.map((same = []) =>
      same
        .map(({ owner }) => owner)
        .sort()
        .join(", "),
    );
    return owners.length < 2 ? [] : [`${group} differs: ${owners.sort().join(" / ")}`];
  });
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
