/**
 * The store on PostgreSQL, for any number of processes.
 *
 * Each method is one transaction, and most are one statement. A statement sees what was committed before it began (`read
 * committed`). A condition that has to hold until the commit therefore stands in the statement that changes the row, or
 * the row is locked first. Claims pass over rows that another process is about to take (`for update skip locked`).
 */

import type { Clock } from "../../clock.ts";
import type { Claim } from "../claim.ts";
import type { CopyStore } from "../copying.ts";
import type { Store } from "../store.ts";
import { PostgresBatches } from "./batches.ts";
import { PostgresChunks } from "./chunks.ts";
import { type ConnectionOptions, connectionOf } from "./connection.ts";
import { PostgresCopying } from "./copying.ts";
import { Database, type OnStatements } from "./database.ts";
import { PostgresDeleting } from "./deleting.ts";
import { PostgresDeliveries } from "./deliveries.ts";
import { type SQL, sql } from "./drizzle.ts";
import { PostgresFiles } from "./files.ts";
import { PostgresFinalizing } from "./finalizing.ts";
import { postgresForecasts } from "./forecasts.ts";
import { PostgresIdempotency } from "./idempotency.ts";
import { Installation } from "./installation.ts";
import { PostgresIntents } from "./intents.ts";
import { PostgresInteractiveSlots } from "./interactive-slots.ts";
import { PostgresKeys } from "./keys.ts";
import { later, PostgresLeases } from "./leases.ts";
import { MIGRATIONS_DIR, type Migrated, migrate } from "./migrations.ts";
import { PostgresModelUsage } from "./model-usage.ts";
import { NudgeListener, sendNudge } from "./nudges.ts";
import { PostgresOpenLists } from "./open-lists.ts";
import { PostgresPausing } from "./pausing.ts";
import { PostgresProgress } from "./progress.ts";
import { PostgresProjects } from "./projects.ts";
import { PostgresReplicas } from "./replicas.ts";
import { postgresRuns } from "./runs.ts";
import { PostgresSources } from "./sources.ts";
import { PostgresSpending } from "./spending.ts";
import { PostgresStopping } from "./stopping.ts";
import { PostgresTidying } from "./tidying.ts";
import { PostgresUploads } from "./uploads.ts";
import { PostgresValidation } from "./validation.ts";
import { PostgresWebhookDeliveries } from "./webhook-deliveries.ts";

export interface PostgresOptions extends ConnectionOptions {
  readonly migrationsDir?: string;
  /** Whether to receive nudges, which takes one more connection. */
  readonly listens: boolean;
  /** It times the pauses between attempts. */
  readonly clock: Pick<Clock, "after">;
  readonly onStatements?: OnStatements | undefined;
  /** Replaces the clock of the database in tests. */
  readonly nowMs?: () => number;
}

export type OpenResult =
  | {
      readonly ok: true;
      readonly store: Store;
      readonly installation: Installation;
      readonly copying: CopyStore;
    }
  | { readonly ok: false; readonly problem: string };

const NEWER =
  "the database was changed by a newer version of batchd; start that version, or restore a copy from before the upgrade";

const LOCKED =
  "the tables of the database could not be brought up to date within two minutes, because other transactions use them, such as a backup; start again when they have ended";

const NARROW_ENCODING =
  "the database cannot store every text, because of its encoding; make one with `create database … encoding 'UTF8' template template0`";

const PROBLEMS: Readonly<Record<Exclude<Migrated, "done">, string>> = {
  newer: NEWER,
  locked: LOCKED,
  narrow_encoding: NARROW_ENCODING,
};

/** Connects to the database and brings its tables up to date. Refuses a database that a newer version has changed. */
export async function openPostgresStore(options: PostgresOptions): Promise<OpenResult> {
  const { migrationsDir = MIGRATIONS_DIR, clock, nowMs, onStatements } = options;
  const connection = connectionOf(options);
  const migrated = await migrate({ connection, migrationsDir, clock });
  if (migrated !== "done") return { ok: false, problem: PROBLEMS[migrated] };
  const db = new Database(connection, clock, onStatements);
  await db.findWhetherItNotifies();
  const installation = new Installation(db);
  await installation.createIfNone();
  const listener = new NudgeListener({ connection, clock });
  const store: Store = {
    ...composeStore(db, nowFrom(nowMs)),
    onNudge: (onNudge) => {
      if (options.listens) listener.start(onNudge);
    },
    close: async () => {
      await listener.close();
      await db.close();
    },
  };
  const applicationName = connection.application_name ?? "";
  const copying = new PostgresCopying(db, { applicationName, now: nowFrom(nowMs) });
  return { ok: true, store, installation, copying };
}

type Now = () => SQL;

/**
 * Returns the present time for a statement. The clock of the database decides, because the clocks of replicas differ. It
 * stands still within a transaction.
 */
function nowFrom(nowMs: (() => number) | undefined): Now {
  const ofDatabase = sql`(extract(epoch from now()) * 1000)::bigint`;
  return nowMs === undefined ? () => ofDatabase : () => sql`${nowMs()}::bigint`;
}

const timed =
  (now: Now) =>
  <C extends Claim>(claim: C) => ({ ...claim, now: now() });

function composeStore(db: Database, now: Now): Omit<Store, "onNudge" | "close"> {
  const bid = timed(now);
  const idempotency = new PostgresIdempotency(db);
  const intents = new PostgresIntents(db);
  const uploads = new PostgresUploads(db, idempotency);
  const batches = new PostgresBatches(db, idempotency);
  const leases = new PostgresLeases(db);
  const stopping = new PostgresStopping(db);
  const finalizing = new PostgresFinalizing(db);
  return {
    ...intentMethods(intents, now),
    ...fileMethods(new PostgresFiles(db, idempotency), now),

    insertUpload: (upload, terms) => uploads.insert(upload, terms),
    findUpload: (upload) => uploads.find(upload),
    insertPartIfPending: (part, limit) => uploads.insertPartIfPending(part, limit, now()),
    partPages: (uploadId) => uploads.partPages(uploadId),
    completeUploadIfPending: (upload, file, terms) =>
      uploads.completeIfPending(upload, { file, ...terms }, now()),
    cancelUploadIfPending: (upload) => uploads.cancelIfPending(upload),
    expireUploads: () => uploads.expire(now()),
    listUploadsToTidy: (limit, after) => uploads.listToTidy(limit, after),
    forgetParts: (uploadId) => uploads.forgetParts(uploadId),
    forgetUploads: () => uploads.forgetOld(now()),

    ...idempotencyMethods(idempotency, now),

    insertBatch: (batch, insertion) => batches.insert(batch, { ...insertion, now: now() }),
    updateBatchIfAllowed: (batch, change) => batches.update(batch, change),
    findBatch: (batch) => batches.find(batch),
    listBatches: (query) => batches.list(query),
    countOpenWork: () => batches.countOpenWork(),
    cancelBatchIfOpen: (batch) => stopping.cancelIfOpen(batch, now()),
    ...pausingMethods(new PostgresPausing(db), now),
    ...sourceMethods(new PostgresSources(db), now),

    ...validationMethods(new PostgresValidation(db), now),

    ...openListMethods(new PostgresOpenLists(db), now),
    ...chunkMethods(new PostgresChunks(db), now),
    countBatchFailureIfLeased: (lease) => leases.countBatchFailureIfLeased(lease),
    releaseChunkIfLeased: (lease, model) => leases.releaseChunkIfLeased(lease, model),
    releaseBatchIfLeased: (lease) => leases.releaseBatchIfLeased(lease),
    renewLeases: (held, claim) => leases.renew(held, bid(claim)),

    stopExpiredBatches: () => stopping.expire(now()),
    closeUnheldChunks: () => stopping.closeUnheldChunks(now()),

    ...finalizingMethods(finalizing, new PostgresTidying(db), now),
    ...deletingMethods(new PostgresDeleting(db), now),

    ...webhookDeliveryMethods(new PostgresWebhookDeliveries(db), now),
    ...deliveryMethods(new PostgresDeliveries(db, idempotency), now),
    ...projectMethods(new PostgresProjects(db), now),
    ...spendingMethods(new PostgresSpending(db), now),
    ...usageMethods(new PostgresModelUsage(db), new PostgresProgress(db)),
    ...postgresRuns(db),
    ...postgresForecasts(db),
    ...replicaMethods(new PostgresReplicas(db), now),
    ...keyMethods(new PostgresKeys(db), new PostgresInteractiveSlots(db), now),
    ping: () => new Installation(db).ping(),
    readDateMs: () => new Installation(db).readDateMs(now()),
    ...nudgeMethods(db),
  };
}

const fileMethods = (files: PostgresFiles, now: Now) =>
  ({
    insertFileIfDeclared: (file, receipt, quotas) => files.insertIfDeclared(file, receipt, quotas),
    findFile: (file) => files.find(file),
    listFiles: (query) => files.list(query, now()),
    deleteFileIfPresent: (file) => files.deleteIfPresent(file, now()),
    deleteExpiredFiles: () => files.deleteExpired(now()),
    sumStored: (project) => files.sumStored(project),
    listUnusedFiles: (limit, after) => files.listUnused(limit, after),
    forgetFiles: (ids) => files.forget(ids, now()),
  }) satisfies Partial<Store>;

const nudgeMethods = (db: Database) =>
  ({
    nudgeToReload: () => db.change((each) => sendNudge(each, "reload_asked")),
    nudgeStopping: () => db.change((each) => sendNudge(each, "batch_stopping")),
  }) satisfies Partial<Store>;

const validationMethods = (validation: PostgresValidation, now: Now) =>
  ({
    claimBatchToValidate: (claim, formerProject) =>
      validation.claim(timed(now)(claim), formerProject),
    failBatchIfLeased: (lease, failure) => validation.failIfLeased(lease, failure, now()),
    startBatchIfLeased: (lease, plan, quotas) =>
      validation.startIfLeased(lease, { plan, quotas }, now()),
  }) satisfies Partial<Store>;
const idempotencyMethods = (idempotency: PostgresIdempotency, now: Now) =>
  ({
    claimIdempotencyKey: (project, key, claim) =>
      idempotency.claim(project, key, timed(now)(claim)),
    renewIdempotencyKeyIfHeld: (project, key, claim) =>
      idempotency.renewIfHeld(project, key, timed(now)(claim)),
    releaseIdempotencyKeyIfHeld: (project, key, owner) =>
      idempotency.releaseIfHeld({ project, key, owner }),
    forgetIdempotencyKeys: () => idempotency.forgetOld(now()),
  }) satisfies Partial<Store>;

const intentMethods = (intents: PostgresIntents, now: Now) =>
  ({
    declareBlobs: (blobKeys, ttlMs) => intents.declare(blobKeys, later(now(), ttlMs)),
    renewIntents: (blobKeys, ttlMs) => intents.renew(blobKeys, later(now(), ttlMs)),
    revokeIntentIfDeclared: (blobKey) => intents.revoke(blobKey),
    revokeExpiredIntents: (limit) => intents.revokeExpired(now(), limit),
    findGarbage: (blobKeys) => intents.findGarbage(blobKeys),
  }) satisfies Partial<Store>;

const replicaMethods = (replicas: PostgresReplicas, now: Now) =>
  ({
    renewReplica: (replica, demands) => replicas.renew(timed(now)(replica), demands),
    releaseReplica: (owner) => replicas.release(owner, now()),
    listLeftReplicas: () => replicas.listLeft(now()),
  }) satisfies Partial<Store>;

const keyMethods = (keys: PostgresKeys, slots: PostgresInteractiveSlots, now: Now) =>
  ({
    insertKeyUnlessDeleted: (key) => keys.insertUnlessDeleted(key),
    listKeys: (query) => keys.list(query),
    deleteKeyIfPresent: (id) => keys.deleteIfPresent(id, now()),
    findKeysInForce: (mark) => keys.findInForce(mark, now()),
    recordKeyUses: (ids) => keys.recordUses(ids, now()),
    agreeOnSigningKey: (purpose, fresh) => keys.agreeOnSigningKey(purpose, fresh),
    takeRequest: (project, limit) => keys.takeRequest(project, limit, now()),
    takeInteractiveSlot: (slot, limits) => slots.take(slot, limits, now()),
    renewInteractiveSlots: (ids, ttlMs) => slots.renew(ids, later(now(), ttlMs)),
    releaseInteractiveSlot: (id) => slots.release(id),
  }) satisfies Partial<Store>;

const sourceMethods = (sources: PostgresSources, now: Now) =>
  ({
    claimBatchToDerive: (claim, turn) => sources.claim(timed(now)(claim), turn),
    publishInputIfLeased: (lease, input) => sources.publishIfLeased(lease, input),
    findInput: (batch) => sources.findInput(batch),
    findMergedResults: (batch) => sources.findMergedResults(batch),
    listRetries: (sourceIds) => sources.listRetries(sourceIds),
  }) satisfies Partial<Store>;

const pausingMethods = (pausing: PostgresPausing, now: Now) =>
  ({
    pauseBatchIfOpen: (batch, reason) => pausing.pauseIfOpen(batch, reason, now()),
    resumeBatchIfPaused: (batch, reason) => pausing.resumeIfPaused(batch, reason),
  }) satisfies Partial<Store>;

const webhookDeliveryMethods = (deliveries: PostgresWebhookDeliveries, now: Now) =>
  ({
    listDueWebhooks: () => deliveries.listDue(now()),
    claimWebhookDelivery: (claim) => deliveries.claim(timed(now)(claim)),
    forgetWebhookDelivery: (webhookId) => deliveries.forget(webhookId),
    postponeWebhookDeliveryIfHeld: (held, ms) => deliveries.postponeIfHeld(held, later(now(), ms)),
  }) satisfies Partial<Store>;

const deliveryMethods = (deliveries: PostgresDeliveries, now: Now) =>
  ({
    insertDeliveryIfFinal: (batch, delivery, receipt) =>
      deliveries.insertIfFinal(batch, { delivery, receipt }, now()),
    listDeliveries: (query) => deliveries.list(query),
    findDelivery: (batch, id) => deliveries.find(batch, id),
    cancelDeliveryIfOpen: (batch, id) => deliveries.cancelIfOpen(batch, id, now()),
    claimDelivery: (claim) => deliveries.claim(timed(now)(claim)),
    renewDeliveryIfLeased: (lease, ttlMs) => deliveries.renewIfLeased(lease, later(now(), ttlMs)),
    saveDeliveryProgressIfLeased: (lease, progress) =>
      deliveries.saveProgressIfLeased(lease, progress),
    releaseDeliveryIfLeased: (lease) => deliveries.releaseIfLeased(lease),
    postponeDeliveryIfLeased: (lease, next) => deliveries.postponeIfLeased(lease, next, now()),
    endDeliveryIfLeased: (lease, end) => deliveries.endIfLeased(lease, end, now()),
    settleOverlookedDeliveries: (limit) => deliveries.settleOverlooked(limit, now()),
  }) satisfies Partial<Store>;

const projectMethods = (projects: PostgresProjects, now: Now) =>
  ({
    putProjectUnlessDeleted: (project) => projects.put(project),
    findProject: (name) => projects.find(name),
    listProjects: (query) => projects.list(query),
    findProjects: () => projects.findAll(),
    beginDeletingProjectIfPresent: (name) => projects.beginDeletingIfPresent(name, now()),
    purgeProject: (name) => projects.purge(name, now()),
  }) satisfies Partial<Store>;

const spendingMethods = (spending: PostgresSpending, now: Now) =>
  ({
    reserveIfLeased: (lease, reservation) => spending.reserve(lease, reservation, now()),
    listQuotaPauses: (after) => spending.listQuotaPauses(after),
  }) satisfies Partial<Store>;

const usageMethods = (usage: PostgresModelUsage, progress: PostgresProgress) =>
  ({
    findPricedUsage: (batchIds) => usage.findPriced(batchIds),
    listUsage: (query, after) => usage.list(query, after),
    findRunningProgress: (ids) => progress.findRunning(ids),
    recordSamples: (changed) => progress.record(changed),
    findProgress: (batchId) => progress.find(batchId),
  }) satisfies Partial<Store>;

const openListMethods = (open: PostgresOpenLists, now: Now) =>
  ({
    listRunnable: () => open.listRunnable(now()),
    listOpenBatches: () => open.listOpenBatches(now()),
  }) satisfies Partial<Store>;

const chunkMethods = (chunks: PostgresChunks, now: Now) =>
  ({
    claimChunks: (claim) => chunks.claim(timed(now)(claim)),
    recordSegmentIfLeased: (lease, entry) => chunks.recordSegmentIfLeased(lease, entry),
    removeSegmentsIfLeased: (lease, keys) => chunks.removeSegmentsIfLeased(lease, keys),
    countChunkFailureIfLeased: (lease) => chunks.countFailureIfLeased(lease),
    closeChunkIfLeased: (lease, last) => chunks.closeIfLeased(lease, last, now()),
  }) satisfies Partial<Store>;

const deletingMethods = (deleting: PostgresDeleting, now: Now) =>
  ({
    deleteBatchIfPresent: (batch, options) => deleting.deleteIfPresent(batch, options, now()),
    listDeletedBatches: (limit, after) => deleting.listDeleted(limit, after),
    forgetBatch: (batchId) => deleting.forget(batchId, now()),
    forgetTombstones: () => deleting.forgetTombstones(now()),
  }) satisfies Partial<Store>;

const finalizingMethods = (finalizing: PostgresFinalizing, tidying: PostgresTidying, now: Now) =>
  ({
    claimBatchToFinalize: (claim, formerProject) =>
      finalizing.claim(timed(now)(claim), formerProject),
    listChunkJournals: (batchId) => finalizing.journals.list(batchId),
    findJournalStart: (batch, from) => finalizing.journals.startAt(batch, from),
    listJournalPage: (batchId, page) => finalizing.journals.listAfter(batchId, page),
    reopenChunksIfLeased: (lease, incomplete) => finalizing.reopenChunksIfLeased(lease, incomplete),
    endWithoutResultsIfLeased: (lease, failure) =>
      finalizing.endWithoutResultsIfLeased(lease, failure, now()),
    finishBatchIfLeased: (lease, result) => finalizing.finishIfLeased(lease, result, now()),
    listBatchesToTidy: (limit, after) => tidying.listToTidy(limit, now(), after),
    forgetChunks: (batchId) => tidying.forgetChunks(batchId),
  }) satisfies Partial<Store>;
