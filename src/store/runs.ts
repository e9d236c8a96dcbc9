/** The part of the store for the run records of batches. The commits that start and end a batch keep what they are made of. */
import type { BatchId } from "../batch/batch.ts";
import type { InputSummary, ResultSummary } from "../batch/run-summary.ts";

export interface KeptRun {
  /** It is null for a batch that was not started, or by a version that did not summarize it. */
  readonly input: InputSummary | null;
  readonly results: ResultSummary | null;
  /** The record, as it was made when it was first asked for. */
  readonly record: string | null;
}

/** What the commit that starts a batch keeps of it, or the one that ends it. */
export type RunSummary = { readonly input: InputSummary } | { readonly results: ResultSummary };

export interface RunStore {
  findRun(batchId: BatchId): Promise<KeptRun | null>;
  /**
   * Keeps the record of a final batch, unless it has one, and returns the one that it has then. Returns null when the
   * batch is gone.
   */
  keepRunRecord(batchId: BatchId, record: string): Promise<string | null>;
}
