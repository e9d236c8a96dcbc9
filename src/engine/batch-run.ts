/**
 * Runs one step of a batch, such as its validation or its finalization, under the lease of its claim and in a span.
 *
 * A step that fails counts against the batch, unless the machine was short of something (`failure.ts`). The lease must
 * then run out before the next try, so that a batch cannot fail in a tight loop.
 */
import type { ClaimedBatch } from "../store/leases.ts";
import type { Store } from "../store/store.ts";
import { type Attributes, during, type Tracing } from "../telemetry/tracing.ts";
import { isPassing } from "./failure.ts";
import type { Leases, Run } from "./lease.ts";
import type { StorageWaits } from "./storage-waits.ts";

export interface BatchStep<T> {
  /** The name of the span. */
  readonly name: "batch.derive" | "batch.validate" | "batch.finalize";
  readonly work: (run: Run) => Promise<T>;
  /** Returns what the span says of the result. */
  readonly describe: (result: T) => Attributes;
}

export interface BatchRunDeps {
  readonly store: Store;
  readonly leases: Leases;
  readonly tracing: Tracing;
  readonly storageWaits: StorageWaits;
}

export async function runStep<T>(
  { lease, batch }: Pick<ClaimedBatch, "lease" | "batch">,
  { name, work, describe }: BatchStep<T>,
  { store, leases, tracing, storageWaits }: BatchRunDeps,
): Promise<void> {
  const run = leases.holdBatch(lease);
  const attributes = { "batchd.batch.id": batch.id };
  const span = tracing.start(name, { parent: batch.traceparent, attributes });
  try {
    await during(span, () => work(run), describe);
    storageWaits.noteStep(batch, null);
  } catch (error) {
    storageWaits.noteStep(batch, error);
    if (!isPassing(error)) await store.countBatchFailureIfLeased(lease);
    throw error;
  } finally {
    leases.endBatchRun(lease);
  }
}
