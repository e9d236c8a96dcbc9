/** The table of deliveries. `schema.ts` has the rules of all tables. */
import type { BatchId, FileId } from "../../batch/batch.ts";
import type { ClientBucket, DeliveryError, DeliveryId } from "../../batch/delivery.ts";
import type { KeptDeliveryStatus } from "../../contract/delivery.ts";
import type { ResultFormat } from "../../contract/results.ts";
import { count, lease, sequence } from "./columns.ts";
import {
  deliveredHasAddress,
  failedDeliveryHasError,
  isDueDelivery,
  isKnownDeliveryStatus,
  isOpenDelivery,
  leaseHasOwnerAndExpiry,
  waitsForItsBatch,
} from "./conditions.ts";
import { check, index, integer, sql, sqliteTable, text, uniqueIndex } from "./drizzle.ts";
import { batches } from "./schema.ts";

export const batchDeliveries = sqliteTable(
  "batch_deliveries",
  {
    sequence: sequence(),
    id: text("id").$type<DeliveryId>().notNull(),
    batchId: text("batch_id")
      .$type<BatchId>()
      .notNull()
      // A replica of an older version deletes the batch without them.
      .references(() => batches.id, { onDelete: "cascade" }),
    /** The project of the batch. */
    project: text("project").notNull().default(""),
    location: text("location"),
    s3: text("s3", { mode: "json" }).$type<ClientBucket>(),
    /** The name of the place, of which a batch may have one unfinished delivery. */
    destination: text("destination").notNull(),
    path: text("path"),
    format: text("format").$type<ResultFormat>().notNull(),
    /** A pending delivery with a holder is being delivered. */
    status: text("status").$type<KeptDeliveryStatus>().notNull(),
    /** The results, from the time at which the delivery is due. */
    outputFileId: text("output_file_id").$type<FileId>(),
    errorFileId: text("error_file_id").$type<FileId>(),
    credentials: text("credentials"),
    progress: text("progress"),
    attemptCount: count("attempt_count"),
    error: text("error", { mode: "json" }).$type<DeliveryError>(),
    address: text("address"),
    createdAtMs: integer("created_at_ms").notNull(),
    /** The time is null while the batch runs. */
    dueAtMs: integer("due_at_ms"),
    nextAttemptAtMs: integer("next_attempt_at_ms"),
    endedAtMs: integer("ended_at_ms"),
    ...lease(),
  },
  (delivery) => [
    uniqueIndex("batch_deliveries_id").on(delivery.id),
    index("batch_deliveries_by_batch").on(delivery.batchId, delivery.sequence),
    uniqueIndex("one_open_delivery_for_each_place")
      .on(delivery.batchId, delivery.destination)
      .where(isOpenDelivery),
    // A look at the due ones reads nothing else, because there may be very many.
    index("batch_deliveries_due")
      .on(
        delivery.nextAttemptAtMs,
        delivery.sequence,
        delivery.leaseExpiresAtMs,
        delivery.destination,
        delivery.project,
        delivery.location,
      )
      .where(isDueDelivery),
    index("batch_deliveries_waiting").on(delivery.batchId).where(waitsForItsBatch),
    index("batch_deliveries_by_output").on(delivery.outputFileId).where(isOpenDelivery),
    index("batch_deliveries_by_error").on(delivery.errorFileId).where(isOpenDelivery),
    check("delivery_status_is_known", isKnownDeliveryStatus),
    check("delivery_has_one_place", sql`(location is null) = (s3 is not null)`),
    check("ended_delivery_has_time", sql`(${isOpenDelivery}) = (ended_at_ms is null)`),
    check("ended_delivery_is_not_due", sql`${isOpenDelivery} or next_attempt_at_ms is null`),
    check("due_delivery_has_time", sql`next_attempt_at_ms is null or due_at_ms is not null`),
    check("ended_delivery_has_no_credentials", sql`${isOpenDelivery} or credentials is null`),
    check("delivered_has_address", deliveredHasAddress),
    check("failed_delivery_has_error", failedDeliveryHasError),
    check("batch_delivery_lease_has_owner_and_expiry", leaseHasOwnerAndExpiry),
    check("ended_delivery_has_no_lease", sql`${isOpenDelivery} or lease_owner is null`),
  ],
);
