/**
 * Renews the place of this process among the replicas, and divides the limits of the upstreams among those that are
 * alive. The renewal also carries what they know of each other (`fleet.ts`).
 *
 * `max_concurrency`, the rates and the schedule of an upstream are meant for the whole fleet. So each replica renews
 * its part of every target in the store, some times before the part would run out, and sends only within it. A replica
 * that cannot renew sends nothing more once its part has run out, because others may have it by then. A line must never
 * wait for the store here.
 */
import { type LaneSharer, type SlotDemand, wantedSlots } from "../../batch/slot-share.ts";
import type { Cancel, Clock } from "../../clock.ts";
import { loop, Nudge } from "../../loop.ts";
import { ownWork } from "../../resources/client-work.ts";
import { sharedRuns } from "../../shared-runs.ts";
import type { Store } from "../../store/store.ts";
import type { Log } from "../../telemetry/log.ts";
import type { TargetDemand, Upstreams } from "../../upstream/upstream.ts";
import { Disagreement } from "./disagreement.ts";
import type { Fleet } from "./fleet.ts";
import { encodeReport, type ReplicaReport } from "./replica-report.ts";

/** A replica that comes or goes changes the parts within two renewals, or after the end of its own. */
const RENEW_EVERY_MS = 3_000;
const PART_TTL_MS = 9_000;

export interface CapacitySharingOptions {
  readonly store: Pick<Store, "renewReplica" | "releaseReplica">;
  readonly upstreams: Upstreams;
  readonly clock: Clock;
  readonly log: Log;
  /** A name that no other process has. */
  readonly owner: string;
  /** Learns from each renewal. */
  readonly fleet: Fleet;
  /** Returns what the other replicas are to know of this one. */
  readonly report: () => ReplicaReport;
  /** Whether the process can do the housekeeping. */
  readonly mayKeepHouse: () => boolean;
  /** Returns the configured requests in flight of a target, for all replicas together; null when it is not configured. */
  readonly limitOf: (target: string) => number | null;
  /** Renews the leases of this process if they may have run out. */
  readonly renewLeasesIfLate: () => Promise<void>;
}

export class CapacitySharing {
  readonly #options: CapacitySharingOptions;
  readonly #nudge = new Nudge();
  readonly #end = new AbortController();
  readonly #disagreement: Disagreement;
  #looping: Promise<void> = Promise.resolve();
  #cancelRunOut: Cancel = () => {};
  /** Two renewals never overlap. Those that ask for one during another share the next. */
  readonly #renewShared = sharedRuns(() => ownWork(() => this.#renewUnlessClosed()));

  constructor(options: CapacitySharingOptions) {
    this.#options = options;
    this.#disagreement = new Disagreement(options.log);
    options.fleet.renewsBy(() => this.#renewQuietly());
  }

  /** Resolves when the process has its first part, so that it sends nothing before. */
  async start(): Promise<void> {
    const { upstreams, clock, log } = this.#options;
    upstreams.setShares([]);
    upstreams.onCircuitChanged(() => this.nudge());
    await this.#renewQuietly();
    this.#looping = loop({
      name: "shares",
      everyMs: RENEW_EVERY_MS,
      nudge: this.#nudge,
      drain: this.#end.signal,
      clock,
      log,
      runOnce: () => this.#renewShared(),
    });
  }

  /** Renews at once, because something has changed that the others are to know. */
  nudge(): void {
    this.#nudge.now();
  }

  /** Gives the parts back. No request may be in flight any more. */
  async close(): Promise<void> {
    this.#end.abort();
    await this.#looping;
    // A request may have asked for one that is under way.
    await this.#renewQuietly();
    this.#cancelRunOut();
    await this.#options.store.releaseReplica(this.#options.owner).catch(() => {});
  }

  /** The loop reports a failure when it happens again. */
  #renewQuietly(): Promise<void> {
    return this.#renewShared().catch(() => {});
  }

  async #renewUnlessClosed(): Promise<void> {
    if (this.#end.signal.aborted) return;
    await this.#renew().catch((error: unknown) => {
      this.#options.fleet.renewalFailed();
      throw error;
    });
  }

  async #renew(): Promise<void> {
    const { store, upstreams, clock, owner, fleet } = this.#options;
    // A replica that was cut off for long must know which work it has lost before it may send again.
    await this.#options.renewLeasesIfLate();
    const startedAtMs = clock.elapsedMs();
    const report = this.#report();
    const demands = upstreams
      .listDemands()
      .map((demand) => this.#demandAmongPeers(demand, report.isWorker));
    const replica = {
      owner,
      ttlMs: PART_TTL_MS,
      report: encodeReport(report),
      mayKeepHouse: this.#options.mayKeepHouse(),
    };
    const { shares, ...renewed } = await store.renewReplica(replica, demands);
    this.#cancelRunOut();
    const runsOutInMs = startedAtMs + PART_TTL_MS - clock.elapsedMs();
    // Others may have the part already.
    if (runsOutInMs <= 0) {
      this.#runOut();
      return;
    }
    this.#cancelRunOut = clock.after(runsOutInMs, () => this.#runOut());
    // The hours of the upstreams go by its date.
    fleet.renewed(renewed);
    upstreams.setShares(shares);
    upstreams.setPeers(fleet.workers, { owner, nowMs: fleet.nowMs });
    if (fleet.isHousekeeper) this.#disagreement.check([{ owner, ...report }, ...fleet.peers]);
  }

  #runOut(): void {
    this.#options.upstreams.setShares([]);
    this.#options.fleet.lost();
  }

  /**
   * All replicas divide one limit. Where theirs differ, the smallest holds: a replica with a smaller one than the
   * others would find more slots held than it knows of, and never get one.
   */
  #demandAmongPeers(demand: TargetDemand, isWorker: boolean): SlotDemand {
    const { owner, limitOf, fleet } = this.#options;
    const { target, held, batchShare, reserve } = demand;
    const peers = fleet.peers.flatMap((peer) =>
      peer.targets
        .filter(({ name }) => name === target)
        .map((each) => ({ ...each, owner: peer.owner, isWorker: peer.isWorker })),
    );
    const limits = peers.flatMap((each) => each.limit ?? []);
    const limit = Math.min(limitOf(target) ?? demand.limit, ...limits);
    const own = { owner, isWorker, lanes: demand.lanes };
    const others = peers.flatMap(({ lanes, ...peer }) =>
      lanes === undefined ? [] : [{ ...peer, lanes }],
    );
    const [first = own, ...rest] = withReserve([own, ...others], reserve);
    return { target, limit, wanted: wantedSlots(first, rest, { limit, batchShare }), held };
  }

  /** Adds the configured limits, because a process may be able to use less than them itself. */
  #report(): ReplicaReport {
    const report = this.#options.report();
    const targets = report.targets.map((target) => {
      const limit = this.#options.limitOf(target.name);
      return limit === null ? target : { ...target, limit };
    });
    return { ...report, targets };
  }
}

/** Gives the servers that run no batches what is kept free for interactive requests, in equal parts. */
function withReserve(
  sharers: readonly (LaneSharer & { readonly isWorker: boolean })[],
  reserve: number,
): LaneSharer[] {
  const serverCount = sharers.filter(({ isWorker }) => !isWorker).length;
  return sharers.map(({ owner, isWorker, lanes }) => {
    const kept = isWorker ? 0 : Math.ceil(reserve / serverCount);
    return { owner, lanes: { ...lanes, interactive: Math.max(kept, lanes.interactive) } };
  });
}
