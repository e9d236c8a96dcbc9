/**
 * The port for facts: files, batches, chunks, leases and journal segments. Each part of it has a file of its own.
 *
 * One method is one transaction. There is deliberately no `transaction(fn)`: better-sqlite3 runs its callback
 * synchronously and node-postgres does not, so no port could promise both. Preconditions are in the names: an `…If…`
 * method changes nothing, and says so, when its condition does not hold.
 *
 * Long work is done page by page, each page a transaction and a turn of the event loop. Lists are read so, and rows
 * that nothing needs are deleted so. A large change is prepared so before the one transaction that counts.
 *
 * Only the holder of a lease may write. A lease has an epoch that grows with each claim. Every write of a worker
 * names its epoch, and a stale one changes nothing.
 *
 * Only the store says what time it is: whether a lease, a window or a file is over, and when something changed. No
 * method may take the present time from its caller, because the clocks of two machines differ. One machine would then
 * take away what the other still holds. Callers give durations (`ttlMs`) and the facts of objects that they make,
 * such as `createdAtMs` and `expiresAtMs`.
 *
 * An id that a client wrote comes as a `ScopedId`, with the project of the client's key. A call without the project
 * does not compile. An id of another project must look like an id that never was.
 */
import type { BatchStore } from "./batches.ts";
import type { ChunkStore } from "./chunks.ts";
import type { DeletingStore } from "./deleting.ts";
import type { DeliveryStore } from "./deliveries.ts";
import type { FileStore } from "./files.ts";
import type { FinalizingStore } from "./finalizing.ts";
import type { ForecastStore } from "./forecasts.ts";
import type { IdempotencyStore } from "./idempotency.ts";
import type { IntentStore } from "./intents.ts";
import type { KeyStore } from "./keys.ts";
import type { LeaseStore } from "./leases.ts";
import type { NudgeStore } from "./nudges.ts";
import type { ProgressStore } from "./progress.ts";
import type { ProjectStore } from "./projects.ts";
import type { QuotaStore } from "./quotas.ts";
import type { ReplicaStore } from "./replicas.ts";
import type { RunStore } from "./runs.ts";
import type { SourceStore } from "./sources.ts";
import type { SpendingStore } from "./spending.ts";
import type { UploadStore } from "./uploads.ts";
import type { UsageStore } from "./usage.ts";
import type { ValidationStore } from "./validation.ts";
import type { WebhookDeliveryStore } from "./webhook-deliveries.ts";

export interface Store
  extends FileStore,
    UploadStore,
    IntentStore,
    IdempotencyStore,
    BatchStore,
    ValidationStore,
    LeaseStore,
    ChunkStore,
    FinalizingStore,
    DeletingStore,
    SourceStore,
    WebhookDeliveryStore,
    DeliveryStore,
    RunStore,
    UsageStore,
    ReplicaStore,
    ForecastStore,
    KeyStore,
    ProjectStore,
    ProgressStore,
    QuotaStore,
    SpendingStore,
    NudgeStore {
  /** Rejects when the store cannot be used, also when it takes no writes. */
  ping(): Promise<void>;
  /** Returns the date by the clock of the store. */
  readDateMs(): Promise<number>;
  close(): Promise<void>;
}
