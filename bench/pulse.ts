/**
 * Asks for one batch at a steady rate without waiting for answers, like many clients together. It follows the progress
 * of the batch, and measures how long a small request waits while the server works.
 */
import type { BatchObject } from "../src/contract/batch.ts";
import type { Api } from "./api.ts";

const EVERY_MS = 20;
const LIMIT_MS = 180_000;

type Status = BatchObject["status"];

export class Pulse implements Disposable {
  readonly latenciesMs: number[] = [];
  readonly #api: Api;
  readonly #timer: NodeJS.Timeout;
  #batchId: string;
  #waits: { readonly has: (batch: BatchObject) => boolean; resolve(batch: BatchObject): void }[] =
    [];
  #failure = Promise.withResolvers<never>();

  constructor(api: Api, batchId: string, everyMs = EVERY_MS) {
    this.#api = api;
    this.#batchId = batchId;
    this.#timer = setInterval(() => void this.#ask(), everyMs);
    // Callers that wait get the error. Without this handler, the rejection would end the process before.
    this.#failure.promise.catch(() => {});
  }

  /** Continues with another batch. */
  turnTo(batchId: string): void {
    this.#batchId = batchId;
  }

  /** Resolves to the batch once it has this status or a later one. Rejects for any other end. */
  reached(status: "in_progress" | "completed"): Promise<BatchObject> {
    const { promise, resolve } = Promise.withResolvers<BatchObject>();
    this.#waits.push({
      has: (batch) => STEPS.indexOf(batch.status) >= STEPS.indexOf(status),
      resolve,
    });
    const limit = setTimeout(() => {
      this.#failure.reject(new Error(`the batch is not ${status} after ${LIMIT_MS / 1000} s`));
    }, LIMIT_MS);
    return Promise.race([promise, this.#failure.promise]).finally(() => clearTimeout(limit));
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer);
  }

  async #ask(): Promise<void> {
    const startedAtMs = performance.now();
    try {
      const id = this.#batchId;
      const batch = await this.#api.batch(id);
      this.latenciesMs.push(performance.now() - startedAtMs);
      if (id === this.#batchId) this.#settle(batch);
    } catch (error) {
      this.#failure.reject(error);
    }
  }

  #settle(batch: BatchObject): void {
    if (!STEPS.includes(batch.status)) {
      this.#failure.reject(new Error(`the batch ended: ${JSON.stringify(batch)}`));
    }
    for (const wait of this.#waits) if (wait.has(batch)) wait.resolve(batch);
    this.#waits = this.#waits.filter((wait) => !wait.has(batch));
  }
}

const STEPS: readonly Status[] = ["validating", "in_progress", "finalizing", "completed"];

/** Throws unless every line of the batch was answered, because the figure would mean nothing. */
export function expectAllAnswered(batch: BatchObject, lineCount: number): void {
  const { total = 0, completed = 0 } = batch.request_counts ?? {};
  if (total !== lineCount || completed !== lineCount) {
    throw new Error(`of ${lineCount} lines ${completed} were answered: ${JSON.stringify(batch)}`);
  }
}
