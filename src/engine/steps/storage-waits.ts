/**
 * Remembers which batches wait for their files or for the database, to show it: such a step fails and is repeated, and
 * without a word of the reason its batch would only seem slow. This is memory of one process, for people to read. No work
 * may depend on it.
 */
import type { Batch, BatchId } from "../../batch/batch.ts";
import type { Waiting } from "../../batch/forecast.ts";
import { type SingleStep, stepOf } from "../../batch/status.ts";
import { isPassing } from "./failure.ts";

/** Another replica may have taken the batch since: it tries again within minutes. */
const KEPT_MS = 600_000;
/** The number of batches that are remembered, and that other replicas learn of; the oldest go first. */
const MAX_BATCHES = 50;

interface Wait {
  /** The step that waits. Another replica may have ended it, and the batch may be at its next one. */
  readonly step: SingleStep;
  readonly sinceMs: number;
  readonly lastAtMs: number;
}

/** A batch that waits with a step, and the date since which it does, as replicas report it. Older versions name no step. */
export type ReportedWait = readonly [id: BatchId, sinceMs: number, step?: SingleStep];

export class StorageWaits {
  readonly #nowMs: () => number;
  readonly #batches = new Map<BatchId, Wait>();
  readonly #claims = new Map<SingleStep, Wait>();

  constructor(nowMs: () => number) {
    this.#nowMs = nowMs;
  }

  /** Takes note of how a step of a batch has ended: `failure` is null where it has succeeded. */
  noteStep({ id, status }: Pick<Batch, "id" | "status">, failure: unknown): void {
    const step = stepOf(status);
    if (step === null) return;
    if (this.#batches.get(id)?.step !== step) this.#batches.delete(id);
    this.#note(this.#batches, { key: id, step }, failure);
    const [oldest] = this.#batches.keys();
    if (this.#batches.size > MAX_BATCHES && oldest !== undefined) this.#batches.delete(oldest);
  }

  /** Runs `claim`, and takes note of a database that does not let it. */
  async duringClaim<T>(step: SingleStep, claim: () => Promise<T>): Promise<T> {
    try {
      const result = await claim();
      this.#note(this.#claims, { key: step, step }, null);
      return result;
    } catch (error) {
      this.#note(this.#claims, { key: step, step }, error);
      throw error;
    }
  }

  /** Returns why a batch waits; null for one that does not, as far as this process knows. */
  find({ id, status }: Pick<Batch, "id" | "status">): Waiting | null {
    const step = stepOf(status);
    if (step === null) return null;
    const own = this.#batches.get(id);
    const wait = own?.step === step ? own : this.#claims.get(step);
    return wait === undefined || this.#isOld(wait) ? null : storageWait(wait.sinceMs);
  }

  /** Lists the batches that wait. */
  list(): ReportedWait[] {
    const waits = [...this.#batches].filter(([, wait]) => !this.#isOld(wait));
    return waits.map(([id, { sinceMs, step }]) => [id, sinceMs, step]);
  }

  #isOld({ lastAtMs }: Wait): boolean {
    return this.#nowMs() - lastAtMs > KEPT_MS;
  }

  #note<Key>(
    waits: Map<Key, Wait>,
    { key, step }: { readonly key: Key; readonly step: SingleStep },
    failure: unknown,
  ): void {
    const lastAtMs = this.#nowMs();
    const sinceMs = waits.get(key)?.sinceMs ?? lastAtMs;
    waits.delete(key);
    if (failure !== null && isPassing(failure)) waits.set(key, { step, sinceMs, lastAtMs });
  }
}

export const storageWait = (sinceMs: number): Waiting => ({
  reason: "storage_unavailable",
  sinceMs,
  upstreamError: null,
});
