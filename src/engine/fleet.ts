/**
 * What this process knows of the other replicas, as of its last renewal (`capacity-sharing.ts`): their reports, whether
 * the housekeeping is its duty, and what time it is in the store.
 *
 * The housekeeping is work that one replica does for all: it ends windows, removes what is no longer needed, forecasts
 * the open batches, and measures the open work. Two replicas may believe for a moment that it is theirs, after a pause
 * of one of them. So each step of it must be safe to do twice.
 */
import type { Clock } from "../clock.ts";
import type { RenewedReplica } from "../store/replicas.ts";
import { decodeReport, type ReplicaReport } from "./replica-report.ts";

/** Another replica. */
export interface KnownPeer extends ReplicaReport {
  readonly owner: string;
}

export class Fleet {
  readonly #clock: Clock;
  #workers: readonly KnownPeer[] = [];
  #isHousekeeper = false;
  /** The clock of the store, less the clock of this machine. */
  #storeAheadMs = 0;
  #onDuty: () => void = () => {};

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** The other replicas that run batches. */
  get workers(): readonly KnownPeer[] {
    return this.#workers;
  }

  /** Whether the housekeeping is the duty of this process. */
  get isHousekeeper(): boolean {
    return this.#isHousekeeper;
  }

  /** The present date by the clock of the store, because the clocks of replicas differ. */
  get nowMs(): number {
    return this.#clock.nowMs() + this.#storeAheadMs;
  }

  /** Sets the listener for the moment at which the housekeeping becomes the duty of this process. */
  onDuty(listener: () => void): void {
    this.#onDuty = listener;
  }

  renewed({ peers, isHousekeeper, nowMs }: Omit<RenewedReplica, "shares">): void {
    const isNew = isHousekeeper && !this.#isHousekeeper;
    this.#workers = peers.flatMap(({ owner, report: text }) => {
      const report = decodeReport(text);
      return report?.isWorker === true ? [{ owner, ...report }] : [];
    });
    this.#isHousekeeper = isHousekeeper;
    this.#storeAheadMs = nowMs - this.#clock.nowMs();
    if (isNew) this.#onDuty();
  }

  /** Notes that the claim of this process has ended. Another replica may have the duty now. */
  lost(): void {
    this.#isHousekeeper = false;
  }
}
