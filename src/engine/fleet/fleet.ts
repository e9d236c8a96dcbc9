/**
 * Keeps what this process knows of the other replicas, as of its last renewal (`capacity-sharing.ts`): their reports,
 * whether the housekeeping is its duty, and what time it is in the store. All of it is some seconds old, so it must
 * never decide alone whether something may be written.
 */
import { type Clock, clockWithDates } from "../../clock.ts";
import type { RenewedReplica } from "../../store/replicas.ts";
import { decodeReport, type ReplicaReport, type WebhookName } from "./replica-report.ts";

/**
 * The time in which replicas that were cut off from the store together have renewed: they try every three seconds
 * (`capacity-sharing.ts`), and it takes some until a connection stands.
 */
const ALL_BACK_WITHIN_MS = 9_000;

/** Another replica. */
export interface KnownPeer extends ReplicaReport {
  readonly owner: string;
}

export class Fleet {
  readonly #clock: Clock;
  /**
   * The clock of this machine with the dates of the store. What the store ends at a date must begin by it: a batch or a file
   * would have a longer or a shorter life on a machine whose clock is wrong.
   */
  readonly storeClock: Clock;
  #peers: readonly KnownPeer[] = [];
  #workers: readonly KnownPeer[] = [];
  #isHousekeeper = false;
  #isCutOff = false;
  /** Whether the last renewal has failed. */
  #hasFailed = false;
  /** The elapsed time from which on work may be claimed. */
  #claimsAtMs = 0;
  /** Whether the store goes by the clock of this machine. */
  readonly #isStoreHere: boolean;
  /** A date by the clock of the store, and the elapsed time at which it was read; null before the first renewal. */
  #storeDate: { readonly dateMs: number; readonly atMs: number } | null = null;
  /** The last time that this process was asked to have all replicas read their configuration again. */
  #reloadAskedAtMs: number | undefined;
  /** The last such time of all replicas; null until the others are known, because this process has just read its own. */
  #reloadHeardAtMs: number | null = null;
  #onReload: () => void = () => {};
  #onDuty: () => void = () => {};
  #renew: () => Promise<void> = async () => {};

  constructor(clock: Clock, { isStoreHere = false } = {}) {
    this.#clock = clock;
    this.#isStoreHere = isStoreHere;
    this.storeClock = clockWithDates(clock, () => this.nowMs);
  }

  /** The other replicas whose reports are known. */
  get peers(): readonly KnownPeer[] {
    return this.#peers;
  }

  /** The other replicas that run batches. */
  get workers(): readonly KnownPeer[] {
    return this.#workers;
  }

  /** The names of the locations that the other replicas deliver to. */
  get locations(): readonly string[] {
    return this.#workers.flatMap(({ common }) => common?.locations ?? []);
  }

  /** Whether another replica that runs batches can deliver to buckets of clients. */
  get clientBuckets(): boolean {
    return this.#workers.some(({ common }) => common?.clientBuckets === true);
  }

  /** The webhooks of the other replicas that run batches. */
  get webhooks(): readonly WebhookName[] {
    return this.#workers.flatMap(({ common }) => common?.webhooks ?? []);
  }

  /** Whether the housekeeping is the duty of this process. */
  get isHousekeeper(): boolean {
    return this.#isHousekeeper;
  }

  /**
   * The milliseconds for which no work is to be claimed. After an outage of the store the leases of all have run out, while the
   * requests of their holders are still in flight. The first one back would take their work, and send its lines again. A claim that
   * began in the outage may be made at its end, so none begins while renewals fail.
   */
  get claimsInMs(): number {
    if (this.#hasFailed || (this.#isCutOff && this.#workers.length > 0)) return ALL_BACK_WITHIN_MS;
    return Math.max(0, this.#claimsAtMs - this.#clock.elapsedMs());
  }

  /**
   * The present date by the clock of the store, because the clocks of replicas differ. It goes on with elapsed time: the date of
   * this machine may be set between two renewals.
   */
  get nowMs(): number {
    if (this.#storeDate === null) return this.#clock.nowMs();
    const { dateMs, atMs } = this.#storeDate;
    return Math.round(dateMs + this.#clock.elapsedMs() - atMs);
  }

  /** Sets the listener for the moment at which the housekeeping becomes the duty of this process. */
  onDuty(listener: () => void): void {
    this.#onDuty = listener;
  }

  get reloadAskedAtMs(): number | undefined {
    return this.#reloadAskedAtMs;
  }

  /**
   * Notes that this process is asked to have all replicas read their configuration again. The others learn it with their
   * renewals.
   */
  askToReload(): void {
    // Later than all that is known, whatever the clock of this machine showed before the first renewal.
    this.#reloadAskedAtMs = Math.max(this.nowMs, (this.#reloadHeardAtMs ?? 0) + 1);
    this.#reloadHeardAtMs = this.#reloadAskedAtMs;
  }

  /** Notes a nudge to read the configuration again, so that the renewal after it is no second one. */
  nudgedToReload(): void {
    this.#reloadHeardAtMs = Math.max(this.nowMs, this.#reloadHeardAtMs ?? 0);
  }

  /** Sets the listener for a replica that was asked to have the configuration read again. */
  onReload(listener: () => void): void {
    this.#onReload = listener;
  }

  /** Sets the way to renew at once. */
  renewsBy(renew: () => Promise<void>): void {
    this.#renew = renew;
  }

  /** Resolves once the others are known as they are now, or cannot be known. */
  refresh(): Promise<void> {
    return this.#renew();
  }

  renewed({ peers, isHousekeeper, nowMs }: Omit<RenewedReplica, "shares">): void {
    const isNew = isHousekeeper && !this.#isHousekeeper;
    this.#hasFailed = false;
    // The claims of the others have run out, too, so that they are not among the workers until they renew.
    this.#claimsAtMs = this.#clock.elapsedMs() + this.claimsInMs;
    this.#isCutOff = false;
    this.#peers = peers.flatMap(({ owner, report: text }) => {
      const report = decodeReport(text);
      return report === null ? [] : [{ owner, ...report }];
    });
    this.#workers = this.#peers.filter(({ isWorker }) => isWorker);
    this.#isHousekeeper = isHousekeeper;
    if (!this.#isStoreHere) this.#storeDate = { dateMs: nowMs, atMs: this.#clock.elapsedMs() };
    if (isNew) this.#onDuty();
    this.#hearOfReloads();
  }

  #hearOfReloads(): void {
    const heardAtMs = this.#reloadHeardAtMs;
    const asked = this.#peers.map(({ reloadAskedAtMs = 0 }) => reloadAskedAtMs);
    this.#reloadHeardAtMs = Math.max(heardAtMs ?? 0, ...asked);
    if (heardAtMs !== null && this.#reloadHeardAtMs > heardAtMs) this.#onReload();
  }

  /** Notes that a renewal has failed. */
  renewalFailed(): void {
    this.#hasFailed = true;
  }

  /** Notes that this process could not renew in time. Another replica may have the duty now. */
  lost(): void {
    // Where the renewals are late again and again, a wait after each of them would let nothing be claimed any more.
    if (this.#clock.elapsedMs() >= this.#claimsAtMs) this.#isCutOff = true;
    this.#isHousekeeper = false;
  }
}
