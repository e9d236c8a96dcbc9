/**
 * Runs one step of a batch, such as its validation or its finalization, under the lease of its claim and in a span.
 *
 * A step that fails counts against the batch, unless the machine was short of something (`failure.ts`). The lease must
 * then run out before the next try, so that a batch cannot fail in a tight loop. One that has lost its lease has not failed.
 */
import type { Batch } from "../../batch/batch.ts";
import type { RulesOf } from "../../batch/project.ts";
import type { Blobs } from "../../blobs/blobs.ts";
import type { Clock } from "../../clock.ts";
import type { ClaimedBatch } from "../../store/leases.ts";
import type { Store } from "../../store/store.ts";
import type { Announcement } from "../../store/webhook-deliveries.ts";
import type { Log } from "../../telemetry/log.ts";
import type { Metrics } from "../../telemetry/metrics.ts";
import { type Attributes, during, type Tracing } from "../../telemetry/tracing.ts";
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

/** What every step of a batch needs. */
export interface BatchStepDeps {
  readonly store: Store;
  readonly blobs: Blobs;
  readonly clock: Clock;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly tracing: Tracing;
  readonly storageWaits: StorageWaits;
  readonly leases: Leases;
  readonly rulesOf: RulesOf;
  readonly announcementsFor: (batch: Batch) => Announcement[];
  /** The callback for a batch that is final: its journal may be removed. */
  readonly onFinal: () => void;
}

type BatchRunDeps = Pick<BatchStepDeps, "store" | "leases" | "tracing" | "storageWaits">;

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
    if (isPassing(error) || (await store.countBatchFailureIfLeased(lease))) throw error;
    // Without the lease, the sweep may have removed what a deleted batch had.
    run.loseLease();
  } finally {
    leases.endBatchRun(lease);
  }
}
