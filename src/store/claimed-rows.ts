/** Conversions of a row, as its claim left it, to what the holder of the lease gets. */
import type { ClaimedDelivery } from "./deliveries.ts";
import type { ClaimedBatch } from "./leases.ts";
import {
  type BatchRow,
  batchFromRow,
  type CountColumns,
  countsFromRow,
  type DeliveryRow,
  deliveryFromRow,
  type FileRow,
  fileFromRow,
} from "./rows.ts";
import type { BatchToDerive } from "./sources.ts";
import type { WebhookDelivery } from "./webhook-deliveries.ts";

type ClaimedBatchRow = BatchRow & {
  readonly leaseEpoch: number;
  readonly failureCount: number;
};

export const batchToDerive = (row: ClaimedBatchRow): BatchToDerive => ({
  lease: { batchId: row.id, epoch: row.leaseEpoch },
  batch: batchFromRow(row),
  failureCount: row.failureCount,
});

export const claimedBatch = (row: ClaimedBatchRow, input: FileRow | undefined): ClaimedBatch => ({
  ...batchToDerive(row),
  input: input === undefined ? null : fileFromRow(input),
});

type ClaimedDeliveryRow = DeliveryRow &
  Pick<ClaimedDelivery, "destination" | "credentials" | "progress"> & {
    readonly leaseEpoch: number;
  };

/** The rows of the batch of a delivery, and of the files that are there. */
interface DeliveredRows {
  readonly batch: BatchRow;
  readonly output: FileRow | undefined;
  readonly error: FileRow | undefined;
}

export const claimedDelivery = (
  row: ClaimedDeliveryRow,
  { batch, output, error }: DeliveredRows,
): ClaimedDelivery => ({
  lease: { deliveryId: row.id, epoch: row.leaseEpoch },
  delivery: deliveryFromRow(row),
  destination: row.destination,
  batch: batchFromRow(batch),
  output: output === undefined ? null : fileFromRow(output),
  error: error === undefined ? null : fileFromRow(error),
  credentials: row.credentials,
  progress: row.progress,
});

/** The row already counts the attempt of the claim, which is not an attempt before it. */
export const claimedWebhookDelivery = (
  row: Omit<WebhookDelivery, "counts"> & CountColumns,
): WebhookDelivery => ({
  webhookId: row.webhookId,
  eventId: row.eventId,
  webhook: row.webhook,
  batchId: row.batchId,
  project: row.project,
  status: row.status,
  counts: countsFromRow(row),
  createdAtMs: row.createdAtMs,
  attemptCount: row.attemptCount - 1,
});
