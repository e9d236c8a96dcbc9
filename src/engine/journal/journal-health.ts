/**
 * Knows which journals of this process cannot be written at the moment. While there is one, no chunk is started: answers that
 * cannot be kept must not be asked for.
 *
 * An outage of the place of the files is waited for, because the answers are paid for. Where others can write all the while, this
 * process alone is cut off from that place. It may be so for days, and it renews its leases, so that its batches
 * would miss their windows. It then gives its chunks to the others, and takes no work until it can write again.
 */
import type { Blobs } from "../../blobs/blobs.ts";
import type { Clock } from "../../clock.ts";
import type { Fleet } from "../fleet/fleet.ts";
import type { ReplicaReport } from "../fleet/replica-report.ts";

/** The time from one look whether this process can write to the next one, where that matters. */
const LOOK_EVERY_MS = 10_000;

export interface JournalHealthOptions {
  readonly blobs: Pick<Blobs, "ping">;
  readonly clock: Pick<Clock, "elapsedMs">;
  readonly fleet: Pick<Fleet, "nowMs"> & {
    readonly workers: readonly Pick<ReplicaReport, "canWrite" | "writableAtMs">[];
  };
  /** For so long others must have been able to write, and this process not. A bucket may be overloaded. */
  readonly patienceMs: number;
}

/** A journal that cannot be written: the dates since which it cannot, and since which others are known to be able to. */
interface Failing {
  readonly sinceMs: number;
  othersWritableSinceMs: number | null;
}

export class JournalHealth {
  readonly #options: JournalHealthOptions;
  readonly #failing = new Map<object, Failing>();
  #writableAtMs: number | undefined;
  #isResting = false;
  #looksAtMs = 0;

  constructor(options: JournalHealthOptions) {
    this.#options = options;
  }

  /** Whether answers can be kept. */
  get isGood(): boolean {
    return this.#failing.size === 0 && !this.#isResting;
  }

  /** Whether a chunk was given away, and nothing was written since. Then others should do all work. */
  get isResting(): boolean {
    return this.#isResting;
  }

  /**
   * Resolves to whether answers can be kept. A process that rests writes to find out. So does one beside others that cannot
   * write: they give no chunk away until they know that it can, and it may have nothing else to write.
   */
  async look(): Promise<boolean> {
    const { clock, fleet } = this.#options;
    const isWanted = this.#isResting || fleet.workers.some(({ canWrite }) => !canWrite);
    if (!isWanted || clock.elapsedMs() < this.#looksAtMs) return this.isGood;
    this.#looksAtMs = clock.elapsedMs() + LOOK_EVERY_MS;
    if (await this.#canWrite()) this.noteWritable();
    return this.isGood;
  }

  /** The last date at which journals are known to have been writable, by the clock of the store. */
  get writableAtMs(): number | undefined {
    return this.#writableAtMs;
  }

  /** Takes note that journals could be written now. */
  noteWritable(): void {
    this.#writableAtMs = this.#options.fleet.nowMs;
    this.#isResting = false;
  }

  noteFailure(journal: object): void {
    if (this.#failing.has(journal)) return;
    this.#failing.set(journal, {
      sinceMs: this.#options.fleet.nowMs,
      othersWritableSinceMs: null,
    });
  }

  /** Resolves to whether the chunk of a failing journal is to go to another process. Then this one rests. */
  async givesAway(journal: object): Promise<boolean> {
    const { fleet, clock, patienceMs } = this.#options;
    const failing = this.#failing.get(journal);
    const couldOthersWrite = (afterMs: number) =>
      fleet.workers.some(({ writableAtMs = 0 }) => writableAtMs > afterMs);
    if (failing === undefined || !couldOthersWrite(failing.sinceMs)) return false;
    // An outage may just be over. Then this journal is written with the next try.
    failing.othersWritableSinceMs ??= fleet.nowMs;
    if (!couldOthersWrite(failing.othersWritableSinceMs + patienceMs)) return false;
    // This process is not cut off when it can write other bytes. What keeps these out, such as a limit of a proxy on their size,
    // would keep them out elsewhere, and each process in turn would pay for the answers.
    if (await this.#canWrite()) return false;
    this.#isResting = true;
    this.#looksAtMs = clock.elapsedMs() + LOOK_EVERY_MS;
    return true;
  }

  /** Forgets the failures of a journal that is written again, or not any more. */
  forget(journal: object): void {
    this.#failing.delete(journal);
  }

  #canWrite(): Promise<boolean> {
    return this.#options.blobs.ping().then(
      () => true,
      () => false,
    );
  }
}
