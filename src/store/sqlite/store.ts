/**
 * The store on one SQLite file, for one process: see `lock.ts`.
 *
 * better-sqlite3 is synchronous, and so is everything behind this file: no transaction can interleave with another.
 * In return each transaction must stay in the low milliseconds, because the event loop waits for it. Long work is
 * done in pages, each a transaction and a turn of the loop.
 */

import { existsSync } from "node:fs";
import type { Clock } from "../../clock.ts";
import type { Claim } from "../claim.ts";
import type { CopyStore } from "../copying.ts";
import type { NudgeStore } from "../nudges.ts";
import type { Store } from "../store.ts";
import { SqliteBatches } from "./batches.ts";
import { SqliteChunks } from "./chunks.ts";
import { SqliteCopying } from "./copying.ts";
import { type OnDamaged, watchForDamage } from "./damage.ts";
import { type Db, openDatabase, write } from "./database.ts";
import { SqliteDeleting } from "./deleting.ts";
import { SqliteDeliveries } from "./deliveries.ts";
import { sql } from "./drizzle.ts";
import { SqliteFiles } from "./files.ts";
import { SqliteFinalizing } from "./finalizing.ts";
import { sqliteForecasts } from "./forecasts.ts";
import { SqliteIdempotency } from "./idempotency.ts";
import { SqliteIntents } from "./intents.ts";
import { SqliteInteractiveSlots } from "./interactive-slots.ts";
import { SqliteKeys } from "./keys.ts";
import { SqliteLeases } from "./leases.ts";
import { isMigrated, isUpToDate, MIGRATIONS_DIR, migrateIfKnown } from "./migrations.ts";
import { SqliteModelUsage } from "./model-usage.ts";
import { SqliteOpenLists } from "./open-lists.ts";
import { SqlitePausing } from "./pausing.ts";
import { SqliteProgress } from "./progress.ts";
import { SqliteProjects } from "./projects.ts";
import { SqliteReplicas } from "./replicas.ts";
import { sqliteRuns } from "./runs.ts";
import { SqliteSegments } from "./segments.ts";
import { SqliteSources } from "./sources.ts";
import { SqliteSpending } from "./spending.ts";
import { SqliteStopping } from "./stopping.ts";
import { SqliteTidying } from "./tidying.ts";
import { SqliteUploads } from "./uploads.ts";
import { SqliteValidation } from "./validation.ts";
import { WalSync } from "./wal-sync.ts";
import { SqliteWebhookDeliveries } from "./webhook-deliveries.ts";

export interface SqliteOptions {
  /** The path of the database file, in a folder that exists. */
  readonly path: string;
  readonly migrationsDir?: string;
  /** Whether a server has the folder and does the rest: then nothing is migrated and no lease is taken back. */
  readonly isBesideServer?: boolean;
  /** Says what time it is for everything in the store. */
  readonly clock: Pick<Clock, "nowMs">;
  /** The callback for the first sign that the file is damaged. */
  readonly onDamaged?: OnDamaged;
}

export type OpenResult =
  | { readonly ok: true; readonly store: Store; readonly copying: CopyStore }
  | { readonly ok: false; readonly problem: string };

const OTHER_VERSION =
  "the server that is using the data folder is of another version than this command: use the command of that version";

/**
 * Opens the database, brings its tables up to date and takes back every lease, as all former holders in this folder
 * are gone. Refuses a database that a newer version has changed.
 */
export async function openSqliteStore(options: SqliteOptions): Promise<OpenResult> {
  const { path, migrationsDir = MIGRATIONS_DIR, isBesideServer = false, clock } = options;
  const { onDamaged = () => {} } = options;
  const db = openDatabase(path);
  try {
    if (isBesideServer && !isUpToDate(db, migrationsDir)) {
      db.$client.close();
      return { ok: false, problem: OTHER_VERSION };
    }
    if (isBesideServer || migrateIfKnown(db, migrationsDir)) {
      if (!isBesideServer) new SqliteLeases(db).takeAllBack();
      const copying = new SqliteCopying(db, () => clock.nowMs());
      const wal = new WalSync(db);
      const onFailure = (error: unknown) => wal.noteFailure(error);
      const watching = { onDamaged, onFailure };
      return {
        ok: true,
        store: watchForDamage(db, composeStore(db, wal, clock), watching),
        copying,
      };
    }
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

/** Whether a server has used the database at `path`. The lock of a data folder alone makes an empty one. */
export function hasTables(path: string): boolean {
  if (!existsSync(path)) return false;
  const db = openDatabase(path);
  try {
    return isMigrated(db);
  } finally {
    db.$client.close();
  }
}

/** The one place of the store that reads the clock: everything behind it takes the time as an argument. */
function composeStore(db: Db, wal: WalSync, clock: Pick<Clock, "nowMs">): Store {
  const now: Now = () => clock.nowMs();
  const bid = timed(now);
  const idempotency = new SqliteIdempotency(db);
  const webhookDeliveries = new SqliteWebhookDeliveries(db);
  const intents = new SqliteIntents(db);
  const modelUsage = new SqliteModelUsage(db);
  const segments = new SqliteSegments(db, modelUsage);
  const files = new SqliteFiles(db, idempotency, intents);
  const uploads = new SqliteUploads(db, idempotency, intents);
  const batches = new SqliteBatches(db, idempotency);
  const leases = new SqliteLeases(db);
  const stopping = new SqliteStopping(db);
  const tidying = new SqliteTidying(db);
  const deleting = new SqliteDeleting(db, { stopping, tidying });
  const finalizing = new SqliteFinalizing(db, { webhookDeliveries, segments, intents });
  return {
    ...intentMethods(intents, now),
    ...fileMethods(files, now),
    ...uploadMethods(uploads, now),
    ...idempotencyMethods(idempotency, now),

    insertBatch: async (batch, insertion) => batches.insert(batch, { ...insertion, nowMs: now() }),
    updateBatchIfAllowed: async (batch, change) => batches.update(batch, change),
    findBatch: async (batch) => batches.find(batch),
    listBatches: (query) => batches.list(query),
    cancelBatchIfOpen: async (batch) => stopping.cancelIfOpen(batch, now()),
    ...pausingMethods(new SqlitePausing(db), now),
    ...sourceMethods(new SqliteSources(db, intents), now),

    ...validationMethods(new SqliteValidation(db, webhookDeliveries), now),
    ...openListMethods(new SqliteOpenLists(db), now),
    ...chunkMethods(new SqliteChunks(db, segments, wal), now),
    countBatchFailureIfLeased: async (lease) => leases.countBatchFailureIfLeased(lease),
    releaseChunkIfLeased: async (lease, model) => leases.releaseChunkIfLeased(lease, model),
    releaseBatchIfLeased: async (lease) => leases.releaseBatchIfLeased(lease),
    renewLeases: (held, claim) => leases.renew(held, bid(claim)),
    stopExpiredBatches: async () => stopping.expire(now()),
    closeUnheldChunks: () => stopping.closeUnheldChunks(now()),

    ...finalizingMethods(finalizing, tidying, now),
    ...deletingMethods(deleting, now),

    ...outgoingMethods(webhookDeliveries, now),
    ...deliveryMethods(new SqliteDeliveries(db, idempotency), now),
    ...projectMethods(new SqliteProjects(db, deleting), now),
    ...progressMethods(new SqliteProgress(db)),
    ...spendingMethods(new SqliteSpending(db), now),
    ...usageMethods(modelUsage),
    ...sqliteRuns(db),
    ...sqliteForecasts(),
    ...replicaMethods(new SqliteReplicas(), now),
    ...keyMethods(new SqliteKeys(db), new SqliteInteractiveSlots(db), now),
    ping: async () => write(db, () => void db.get(sql`select 1`)),
    readDateMs: async () => now(),
    close: () => wal.close().finally(() => db.$client.close()),
  };
}

/** A store for one process has no other to nudge. */
const NO_NUDGES: NudgeStore = {
  onNudge: () => {},
  nudgeToReload: async () => {},
  nudgeStopping: async () => {},
};

type Now = () => number;

/** Adds the time at which a claim comes in. */
const timed =
  (now: Now) =>
  <C extends Claim>(claim: C) => ({ ...claim, nowMs: now() });

const fileMethods = (files: SqliteFiles, now: Now) =>
  ({
    insertFileIfDeclared: async (file, receipt, quotas) =>
      files.insertIfDeclared(file, receipt, quotas),
    findFile: async (file) => files.find(file),
    listFiles: async (query) => files.list(query, now()),
    deleteFileIfPresent: async (file) => files.deleteIfPresent(file, now()),
    deleteExpiredFiles: async () => files.deleteExpired(now()),
    sumStored: async (project) => files.sumStored(project),
    listUnusedFiles: (limit, after) => files.listUnused(limit, after),
    forgetFiles: async (ids) => files.forget(ids, now()),
  }) satisfies Partial<Store>;

const uploadMethods = (uploads: SqliteUploads, now: Now) =>
  ({
    insertUpload: async (upload, terms) => uploads.insert(upload, terms),
    findUpload: async (upload) => uploads.find(upload),
    insertPartIfPending: async (part, limit) => uploads.insertPartIfPending(part, limit, now()),
    partPages: (uploadId) => uploads.partPages(uploadId),
    completeUploadIfPending: async (upload, file, terms) =>
      uploads.completeIfPending(upload, { file, ...terms }, now()),
    cancelUploadIfPending: async (upload) => uploads.cancelIfPending(upload),
    expireUploads: async () => uploads.expire(now()),
    listUploadsToTidy: async (limit, after) => uploads.listToTidy(limit, after),
    forgetParts: (uploadId) => uploads.forgetParts(uploadId),
    forgetUploads: () => uploads.forgetOld(now()),
  }) satisfies Partial<Store>;

const idempotencyMethods = (idempotency: SqliteIdempotency, now: Now) =>
  ({
    claimIdempotencyKey: async (project, key, claim) =>
      idempotency.claim(project, key, timed(now)(claim)),
    renewIdempotencyKeyIfHeld: async (project, key, claim) =>
      idempotency.renewIfHeld(project, key, timed(now)(claim)),
    releaseIdempotencyKeyIfHeld: async (project, key, owner) =>
      idempotency.releaseIfHeld({ project, key, owner }),
    forgetIdempotencyKeys: () => idempotency.forgetOld(now()),
  }) satisfies Partial<Store>;

const intentMethods = (intents: SqliteIntents, now: Now) =>
  ({
    declareBlobs: async (blobKeys, ttlMs) => intents.declare(blobKeys, now() + ttlMs),
    renewIntents: async (blobKeys, ttlMs) => intents.renew(blobKeys, now() + ttlMs),
    revokeIntentIfDeclared: async (blobKey) => intents.revoke(blobKey),
    revokeExpiredIntents: async (limit) => intents.revokeExpired(now(), limit),
    findGarbage: async (blobKeys) => intents.findGarbage(blobKeys),
  }) satisfies Partial<Store>;

const replicaMethods = (replicas: SqliteReplicas, now: Now) =>
  ({
    renewReplica: async (replica, demands) => replicas.renew(replica, demands, now()),
    releaseReplica: async (owner) => replicas.release(owner, now()),
    listLeftReplicas: async () => replicas.listLeft(now()),
  }) satisfies Partial<Store>;

const keyMethods = (keys: SqliteKeys, slots: SqliteInteractiveSlots, now: Now) =>
  ({
    insertKeyUnlessDeleted: async (key) => keys.insertUnlessDeleted(key),
    listKeys: async (query) => keys.list(query),
    deleteKeyIfPresent: async (id) => keys.deleteIfPresent(id, now()),
    findKeysInForce: (mark) => keys.findInForce(mark, now()),
    recordKeyUses: (ids) => keys.recordUses(ids, now()),
    agreeOnSigningKey: async (purpose, fresh) => keys.agreeOnSigningKey(purpose, fresh),
    takeRequest: async (project, limit) => keys.takeRequest(project, limit, now()),
    takeInteractiveSlot: async (slot, limits) => slots.take(slot, limits, now()),
    renewInteractiveSlots: async (ids, ttlMs) => slots.renew(ids, now() + ttlMs),
    releaseInteractiveSlot: async (id) => slots.release(id),
  }) satisfies Partial<Store>;

const outgoingMethods = (webhookDeliveries: SqliteWebhookDeliveries, now: Now) =>
  ({
    ...NO_NUDGES,
    listDueWebhooks: async () => webhookDeliveries.listDue(now()),
    claimWebhookDelivery: async (claim) => webhookDeliveries.claim(timed(now)(claim)),
    forgetWebhookDelivery: async (webhookId) => webhookDeliveries.forget(webhookId),
    postponeWebhookDeliveryIfHeld: async (held, ms) =>
      webhookDeliveries.postponeIfHeld(held, now() + ms),
  }) satisfies Partial<Store>;

const deliveryMethods = (deliveries: SqliteDeliveries, now: Now) =>
  ({
    insertDeliveryIfFinal: async (batch, delivery, receipt) =>
      deliveries.insertIfFinal(batch, { delivery, receipt }, now()),
    listDeliveries: async (query) => deliveries.list(query),
    findDelivery: async (batch, id) => deliveries.find(batch, id),
    cancelDeliveryIfOpen: async (batch, id) => deliveries.cancelIfOpen(batch, id, now()),
    claimDelivery: async (claim) => deliveries.claim(timed(now)(claim)),
    renewDeliveryIfLeased: async (lease, ttlMs) => deliveries.renewIfLeased(lease, now() + ttlMs),
    saveDeliveryProgressIfLeased: async (lease, progress) =>
      deliveries.saveProgressIfLeased(lease, progress),
    releaseDeliveryIfLeased: async (lease) => deliveries.releaseIfLeased(lease),
    postponeDeliveryIfLeased: async (lease, next) =>
      deliveries.postponeIfLeased(lease, next, now()),
    endDeliveryIfLeased: async (lease, end) => deliveries.endIfLeased(lease, end, now()),
    // A folder has no replica of an older version, which would overlook some.
    settleOverlookedDeliveries: async () => 0,
  }) satisfies Partial<Store>;

const projectMethods = (projects: SqliteProjects, now: Now) =>
  ({
    putProjectUnlessDeleted: async (project) => projects.put(project),
    findProject: async (name) => projects.find(name),
    listProjects: async (query) => projects.list(query),
    findProjects: () => projects.findAll(),
    beginDeletingProjectIfPresent: async (name) => projects.beginDeletingIfPresent(name, now()),
    purgeProject: (name) => projects.purge(name, now()),
  }) satisfies Partial<Store>;

const progressMethods = (progress: SqliteProgress) =>
  ({
    findRunningProgress: async (ids) => progress.findRunning(ids),
    recordSamples: async (changed) => progress.record(changed),
    findProgress: async (batchId) => progress.find(batchId),
  }) satisfies Partial<Store>;

const spendingMethods = (spending: SqliteSpending, now: Now) =>
  ({
    reserveIfLeased: async (lease, reservation) => spending.reserve(lease, reservation, now()),
    listQuotaPauses: async (after) => spending.listQuotaPauses(after),
  }) satisfies Partial<Store>;

const usageMethods = (usage: SqliteModelUsage) =>
  ({
    findPricedUsage: async (batchIds) => usage.findPriced(batchIds),
    listUsage: async (query, after) => usage.list(query, after),
  }) satisfies Partial<Store>;

const validationMethods = (validation: SqliteValidation, now: Now) =>
  ({
    claimBatchToValidate: async (claim, formerProject) =>
      validation.claim(timed(now)(claim), formerProject),
    failBatchIfLeased: async (lease, failure) => validation.failIfLeased(lease, failure, now()),
    startBatchIfLeased: (lease, plan, quotas) =>
      validation.startIfLeased(lease, { plan, quotas }, now()),
  }) satisfies Partial<Store>;

const sourceMethods = (sources: SqliteSources, now: Now) =>
  ({
    claimBatchToDerive: (claim, turn) => sources.claim(timed(now)(claim), turn),
    publishInputIfLeased: async (lease, input) => sources.publishIfLeased(lease, input),
    findInput: async (batch) => sources.findInput(batch),
    findMergedResults: async (batch) => sources.findMergedResults(batch),
    listRetries: async (sourceIds) => sources.listRetries(sourceIds),
  }) satisfies Partial<Store>;

const pausingMethods = (pausing: SqlitePausing, now: Now) =>
  ({
    pauseBatchIfOpen: async (batch, reason) => pausing.pauseIfOpen(batch, reason, now()),
    resumeBatchIfPaused: async (batch, reason) => pausing.resumeIfPaused(batch, reason),
  }) satisfies Partial<Store>;

const openListMethods = (open: SqliteOpenLists, now: Now) =>
  ({
    listRunnable: () => open.listRunnable(now()),
    listOpenBatches: () => open.listOpenBatches(now()),
    countOpenWork: () => open.countOpenWork(),
  }) satisfies Partial<Store>;

const chunkMethods = (chunks: SqliteChunks, now: Now) =>
  ({
    claimChunks: async (claim) => chunks.claim(timed(now)(claim)),
    recordSegmentIfLeased: (lease, entry) => chunks.recordSegmentIfLeased(lease, entry),
    removeSegmentsIfLeased: async (lease, keys) => chunks.removeSegmentsIfLeased(lease, keys),
    countChunkFailureIfLeased: async (lease) => chunks.countFailureIfLeased(lease),
    closeChunkIfLeased: (lease, last) => chunks.closeIfLeased(lease, last, now()),
  }) satisfies Partial<Store>;

const deletingMethods = (deleting: SqliteDeleting, now: Now) =>
  ({
    deleteBatchIfPresent: async (batch, options) => deleting.deleteIfPresent(batch, options, now()),
    listDeletedBatches: async (limit, after) => deleting.listDeleted(limit, after),
    forgetBatch: (batchId) => deleting.forget(batchId, now()),
    forgetTombstones: () => deleting.forgetTombstones(now()),
  }) satisfies Partial<Store>;

const finalizingMethods = (finalizing: SqliteFinalizing, tidying: SqliteTidying, now: Now) =>
  ({
    claimBatchToFinalize: async (claim, formerProject) =>
      finalizing.claim(timed(now)(claim), formerProject),
    listChunkJournals: (batchId) => finalizing.journals.list(batchId),
    findJournalStart: (batch, from) => finalizing.journals.startAt(batch, from),
    listJournalPage: (batchId, page) => finalizing.journals.listAfter(batchId, page),
    reopenChunksIfLeased: (lease, incomplete) => finalizing.reopenChunksIfLeased(lease, incomplete),
    endWithoutResultsIfLeased: async (lease, failure) =>
      finalizing.endWithoutResultsIfLeased(lease, failure, now()),
    finishBatchIfLeased: (lease, result) => finalizing.finishIfLeased(lease, result, now()),
    listBatchesToTidy: async (limit, after) => tidying.listToTidy(limit, after),
    forgetChunks: (batchId) => tidying.forgetChunks(batchId),
  }) satisfies Partial<Store>;
