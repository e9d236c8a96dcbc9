/**
 * The store on one SQLite file, for one process: see `lock.ts`.
 *
 * better-sqlite3 is synchronous, and so is everything behind this file: a transaction cannot be
 * interleaved with another. In return each transaction must stay in the low milliseconds, because the event
 * loop waits for it: what may be long is done in pages, each a transaction and a turn of the loop.
 */

import type { DeliveryStore } from "../deliveries.ts";
import type { IntentStore } from "../intents.ts";
import type { Store } from "../store.ts";
import { SqliteBatches } from "./batches.ts";
import { SqliteChunks } from "./chunks.ts";
import { type Db, openDatabase, write } from "./database.ts";
import { SqliteDeliveries } from "./deliveries.ts";
import { sql } from "./drizzle.ts";
import { SqliteFiles } from "./files.ts";
import { SqliteFinalizing } from "./finalizing.ts";
import { SqliteIdempotency } from "./idempotency.ts";
import { SqliteIntents } from "./intents.ts";
import { SqliteLeases } from "./leases.ts";
import { MIGRATIONS_DIR, migrateIfKnown } from "./migrations.ts";
import { SqliteOpenLists } from "./open-lists.ts";
import { SqliteSegments } from "./segments.ts";
import { SqliteStopping } from "./stopping.ts";
import { SqliteUploads } from "./uploads.ts";
import { SqliteValidation } from "./validation.ts";
import { WalSync } from "./wal-sync.ts";

export interface SqliteOptions {
  /** Of the database file, in a folder that exists. */
  readonly path: string;
  readonly migrationsDir?: string;
}

export type OpenResult =
  | { readonly ok: true; readonly store: Store }
  | { readonly ok: false; readonly problem: string };

/**
 * Opens the database, brings its tables up to date and takes back every lease: whoever held one in this
 * folder is gone. Refuses a database that a newer version has changed.
 */
export async function openSqliteStore(options: SqliteOptions): Promise<OpenResult> {
  const { path, migrationsDir = MIGRATIONS_DIR } = options;
  const db = openDatabase(path);
  try {
    if (migrateIfKnown(db, migrationsDir)) return { ok: true, store: composeStore(db) };
  } catch (error) {
    db.$client.close();
    throw error;
  }
  db.$client.close();
  return {
    ok: false,
    problem: `${path} was written by a newer version of batchd; start that version, or restore a copy from before the upgrade`,
  };
}

function composeStore(db: Db): Store {
  const idempotency = new SqliteIdempotency(db);
  const deliveries = new SqliteDeliveries(db);
  const intents = new SqliteIntents(db);
  const segments = new SqliteSegments(db);
  const files = new SqliteFiles(db, idempotency, intents);
  const uploads = new SqliteUploads(db, idempotency, intents);
  const batches = new SqliteBatches(db, idempotency);
  const validation = new SqliteValidation(db, deliveries);
  const leases = new SqliteLeases(db);
  const stopping = new SqliteStopping(db);
  const wal = new WalSync(db.$client.name);
  const finalizing = new SqliteFinalizing(db, { deliveries, segments, intents });
  leases.takeAllBack();
  return {
    ...intentMethods(intents),
    insertFileIfDeclared: async (file, receipt) => files.insertIfDeclared(file, receipt),
    findFile: async (file) => files.find(file),
    listFiles: async (query) => files.list(query),
    deleteFileIfPresent: async (file, nowMs) => files.deleteIfPresent(file, nowMs),
    deleteExpiredFiles: async (nowMs) => files.deleteExpired(nowMs),
    listUnusedFiles: async (limit) => files.listUnused(limit),
    forgetFile: async (id) => files.forget(id),

    insertUpload: async (upload, receipt) => uploads.insert(upload, receipt),
    findUpload: async (upload) => uploads.find(upload),
    insertPartIfPending: async (part, nowMs) => uploads.insertPartIfPending(part, nowMs),
    listParts: (uploadId) => uploads.listParts(uploadId),
    completeUploadIfPending: async (upload, file, nowMs) =>
      uploads.completeIfPending(upload, file, nowMs),
    cancelUploadIfPending: async (upload) => uploads.cancelIfPending(upload),
    expireUploads: async (nowMs) => uploads.expire(nowMs),
    listUploadsToTidy: async (limit) => uploads.listToTidy(limit),
    forgetParts: (uploadId) => uploads.forgetParts(uploadId),

    claimIdempotencyKey: async (project, key, claim) => idempotency.claim(project, key, claim),
    renewIdempotencyKeyIfHeld: async (project, key, claim) =>
      idempotency.renewIfHeld(project, key, claim),
    releaseIdempotencyKeyIfHeld: async (project, key, owner) =>
      idempotency.releaseIfHeld({ project, key, owner }),
    forgetIdempotencyKeys: (nowMs) => idempotency.forgetOld(nowMs),

    insertBatch: async (batch, receipt) => batches.insert(batch, receipt),
    findBatch: async (batch) => batches.find(batch),
    listBatches: async (query) => batches.list(query),
    countOpenWork: async () => batches.countOpenWork(),
    cancelBatchIfOpen: async (batch, nowMs) => stopping.cancelIfOpen(batch, nowMs),

    claimBatchToValidate: async (claim, formerProject) => validation.claim(claim, formerProject),
    failBatchIfLeased: async (lease, failure, nowMs) =>
      validation.failIfLeased(lease, failure, nowMs),
    startBatchIfLeased: (lease, plan, nowMs) => validation.startIfLeased(lease, plan, nowMs),

    ...openListMethods(new SqliteOpenLists(db)),
    ...chunkMethods(new SqliteChunks(db, segments, wal)),
    countBatchFailureIfLeased: async (lease) => leases.countBatchFailureIfLeased(lease),
    releaseChunkIfLeased: async (lease) => leases.releaseChunkIfLeased(lease),
    releaseBatchIfLeased: async (lease) => leases.releaseBatchIfLeased(lease),
    renewLeases: (held, claim) => leases.renew(held, claim),

    stopExpiredBatches: async (nowMs) => stopping.expire(nowMs),
    closeAbandonedChunks: (nowMs) => stopping.closeAbandonedChunks(nowMs),

    ...finalizingMethods(finalizing),

    ...deliveryMethods(deliveries),

    ping: async () => write(db, () => void db.get(sql`select 1`)),
    close: () => wal.close().finally(() => db.$client.close()),
  };
}

const intentMethods = (intents: SqliteIntents) =>
  ({
    declareBlobs: async (blobKeys, expiresAtMs) => intents.declare(blobKeys, expiresAtMs),
    renewIntents: async (blobKeys, expiresAtMs) => intents.renew(blobKeys, expiresAtMs),
    giveUpBlobIfDeclared: async (blobKey) => intents.giveUp(blobKey),
    giveUpExpiredBlobs: async (nowMs, limit) => intents.giveUpExpired(nowMs, limit),
    findGarbage: async (blobKeys) => intents.findGarbage(blobKeys),
  }) satisfies IntentStore;

const deliveryMethods = (deliveries: SqliteDeliveries) =>
  ({
    claimDeliveries: async (claim) => deliveries.claim(claim),
    forgetDelivery: async (webhookId) => deliveries.forget(webhookId),
    postponeDelivery: async (webhookId, atMs) => deliveries.postpone(webhookId, atMs),
  }) satisfies DeliveryStore;

const openListMethods = (open: SqliteOpenLists) =>
  ({
    listRunnable: (nowMs) => open.listRunnable(nowMs),
    listOpenBatches: () => open.listOpenBatches(),
  }) satisfies Partial<Store>;

const chunkMethods = (chunks: SqliteChunks) =>
  ({
    claimChunk: async (claim) => chunks.claim(claim),
    recordSegmentIfLeased: (lease, entry) => chunks.recordSegmentIfLeased(lease, entry),
    dropSegmentsIfLeased: async (lease, keys) => chunks.dropSegmentsIfLeased(lease, keys),
    countChunkFailureIfLeased: async (lease) => chunks.countFailureIfLeased(lease),
    closeChunkIfLeased: (lease, last, nowMs) => chunks.closeIfLeased(lease, last, nowMs),
  }) satisfies Partial<Store>;

const finalizingMethods = (finalizing: SqliteFinalizing) =>
  ({
    claimBatchToFinalize: async (claim) => finalizing.claim(claim),
    listChunkJournals: (batchId) => finalizing.listChunkJournals(batchId),
    reopenChunksIfLeased: (lease, incomplete) => finalizing.reopenChunksIfLeased(lease, incomplete),
    endWithoutResultsIfLeased: async (lease, failure, nowMs) =>
      finalizing.endWithoutResultsIfLeased(lease, failure, nowMs),
    finishBatchIfLeased: (lease, result, nowMs) => finalizing.finishIfLeased(lease, result, nowMs),
    listBatchesToTidy: async (limit) => finalizing.listToTidy(limit),
    forgetChunks: (batchId) => finalizing.forgetChunks(batchId),
  }) satisfies Partial<Store>;
