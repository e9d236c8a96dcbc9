/**
 * Takes samples of the counters of running batches, for the course that people see. Every replica does so for the batches that
 * it has leases of, as often as it looks for work: every second on SQLite, every 4 s on PostgreSQL. A batch is sampled the less
 * often the longer it runs. No line and no segment costs anything here. Samples are taken from counters that are durable, so a
 * crash loses at most a moment of the course.
 */
import type { BatchId } from "../batch/batch.ts";
import { addSample, nextSampleAtMs } from "../batch/progress.ts";
import type { RunningProgress } from "../store/progress.ts";
import type { Store } from "../store/store.ts";

/** The batches that are read and written at once. */
const PAGE = 50;

interface ProgressSamplerDeps {
  readonly store: Pick<Store, "findRunningProgress" | "recordSamples">;
  /** Lists the batches with lines under way in this process. */
  readonly running: () => Iterable<BatchId>;
  readonly nowMs: () => number;
}

export class ProgressSampler {
  readonly #deps: ProgressSamplerDeps;
  /** The time of the next sample of each running batch. */
  readonly #dueAtMs = new Map<BatchId, number>();

  constructor(deps: ProgressSamplerDeps) {
    this.#deps = deps;
  }

  async sample(): Promise<void> {
    const { running, nowMs } = this.#deps;
    const ids = new Set(running());
    for (const id of this.#dueAtMs.keys()) if (!ids.has(id)) this.#dueAtMs.delete(id);
    const due = [...ids].filter((id) => (this.#dueAtMs.get(id) ?? 0) <= nowMs());
    for (let at = 0; at < due.length; at += PAGE) await this.#samplePage(due.slice(at, at + PAGE));
  }

  async #samplePage(ids: readonly BatchId[]): Promise<void> {
    const { store, nowMs } = this.#deps;
    // A replica that stands still during the read takes a late sample for an old one, which the store refuses.
    const atMs = nowMs();
    const found = await store.findRunningProgress(ids);
    // Another replica may have taken a sample a moment ago.
    const due = found.filter((each) => lastDueAtMs(each) <= atMs);
    for (const { batchId, startedAtMs, samples } of found) {
      const lastAtMs = due.some((each) => each.batchId === batchId) ? atMs : samples.at(-1)?.atMs;
      this.#dueAtMs.set(batchId, nextSampleAtMs(startedAtMs, lastAtMs ?? atMs));
    }
    if (due.length === 0) return;
    await store.recordSamples(
      due.map(({ batchId, startedAtMs: _, samples, ...counters }) => ({
        batchId,
        samples: addSample(samples, { atMs, ...counters }),
      })),
    );
  }
}

const lastDueAtMs = ({ startedAtMs, samples }: RunningProgress): number =>
  nextSampleAtMs(startedAtMs, samples.at(-1)?.atMs ?? startedAtMs);
