/** Builds the contents of a store. A test names only the fields that matter to it. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  type Batch,
  type BatchId,
  type InputExtent,
  NO_USAGE,
  newBatchId,
  newFileId,
  type PartId,
  type StoredFile,
  type UploadId,
} from "../../src/batch/batch.ts";
import type { PlannedChunk } from "../../src/batch/plan.ts";
import type { BatchStatus } from "../../src/contract/batch.ts";
import type { ClaimedChunk, SegmentEntry } from "../../src/store/chunks.ts";
import type { Claim } from "../../src/store/claim.ts";
import type { BatchResult } from "../../src/store/finalizing.ts";
import type { Receipt } from "../../src/store/idempotency.ts";
import type { BatchLease } from "../../src/store/leases.ts";
import type { Store } from "../../src/store/store.ts";
import type { Upload, UploadPart } from "../../src/store/uploads.ts";
import type { BatchFailure, BatchPlan } from "../../src/store/validation.ts";
import type { Announcement, WebhookDelivery } from "../../src/store/webhook-deliveries.ts";
import { FakeClock } from "./fake-clock.ts";

export function temporaryFolder(prefix: string, root = tmpdir()) {
  const path = mkdtempSync(join(root, prefix));
  return { path, [Symbol.dispose]: () => rmSync(path, { recursive: true, force: true }) };
}

export const NOW_MS = 1_800_000_000_000;
const WINDOW_MS = 86_400_000;
export const LEASE_TTL_MS = 30_000;
export const PROJECT = "default";

export function aFile(fields: Partial<StoredFile> = {}): StoredFile {
  const id = newFileId();
  return {
    id,
    project: PROJECT,
    purpose: "batch",
    filename: "input.jsonl",
    bytes: 1_000,
    sha256: "0".repeat(64),
    blobKey: `files/${id}`,
    createdAtMs: NOW_MS,
    expiresAtMs: null,
    traceparent: null,
    ...fields,
  };
}

export function aBatch(fields: Partial<Batch> = {}): Batch {
  return {
    id: newBatchId(NOW_MS),
    project: PROJECT,
    endpoint: "/v1/chat/completions",
    inputFileId: newFileId(),
    completionWindow: "24h",
    status: "validating",
    stopReason: null,
    paused: null,
    failures: [],
    sample: null,
    source: null,
    isInputPending: false,
    deduplicated: null,
    lineMarks: [],
    model: null,
    faults: null,
    outputFileId: null,
    errorFileId: null,
    createdAtMs: NOW_MS,
    expiresAtMs: NOW_MS + WINDOW_MS,
    inProgressAtMs: null,
    finalizingAtMs: null,
    completedAtMs: null,
    failedAtMs: null,
    expiredAtMs: null,
    cancellingAtMs: null,
    cancelledAtMs: null,
    counts: { total: 0, completed: 0, failed: 0 },
    usage: NO_USAGE,
    metadata: null,
    outputExpiresAfterSeconds: null,
    priority: 0,
    budget: null,
    defaultModel: null,
    traceparent: null,
    ...fields,
  };
}

/** Stores a batch of any status that comes after `in_progress`. */
export async function insertBatchWith(store: Store, status: BatchStatus): Promise<Batch> {
  const stamps = {
    inProgressAtMs: 2_000,
    ...(status !== "cancelling" && status !== "finalizing" && { [`${status}AtMs`]: 4_000 }),
    ...(["finalizing", "completed"].includes(status) && { finalizingAtMs: 3_000 }),
    ...(["cancelling", "cancelled"].includes(status) && {
      cancellingAtMs: 3_000,
      stopReason: "cancelled" as const,
    }),
    ...(status === "expired" && { stopReason: "expired" as const }),
  };
  const batch = aBatch({ status, model: "m", ...stamps });
  await store.insertBatch(batch);
  return batch;
}

const LINES_PER_CHUNK = 10;
const LINE_BYTES = 100;

const extent = (number: number): InputExtent => ({
  start: number * LINES_PER_CHUNK * LINE_BYTES,
  end: (number + 1) * LINES_PER_CHUNK * LINE_BYTES,
  firstLine: number * LINES_PER_CHUNK + 1,
});

/** Returns a plan with one chunk of ten lines for each name in `models`. */
export function aPlan(models: readonly string[] = ["llama"]): BatchPlan {
  const chunks: PlannedChunk[] = models.map((model, number) => ({
    number,
    model,
    lineCount: LINES_PER_CHUNK,
    extents: [extent(number)],
  }));
  return {
    model: models[0] ?? "llama",
    defaultModel: null,
    total: chunks.length * LINES_PER_CHUNK,
    estimatedTokens: chunks.length * LINES_PER_CHUNK,
    chunks,
    sampleChunkCount: null,
    lineMarks: [[1, 0]],
    duplicates: { lineCount: 0, firstLine: null },
  };
}

/** A result. The counts may be left out when the journal could be read as it was written. */
type Result = Omit<BatchResult, "counts"> & Partial<Pick<BatchResult, "counts">>;

export const NO_RESULT: Result = {
  output: null,
  error: null,
  failures: [],
  lostBlobKeys: [],
  unusedBlobKeys: [],
  announcements: [],
};

export const aResult = (fields: Partial<Result> = {}): Result => ({ ...NO_RESULT, ...fields });

export const aFailure = (fields: Partial<BatchFailure> = {}): BatchFailure => ({
  faults: [],
  announcements: [],
  ...fields,
});

let count = 0;
const next = () => ++count;

export function aSegment(fields: Partial<SegmentEntry> = {}): SegmentEntry {
  return {
    blobKey: `journal/segment-${next()}`,
    bytes: 500,
    crc32: 1,
    completed: 1,
    failed: 0,
    usage: NO_USAGE,
    failures: [],
    modelUsage: [],
    latencyCounts: null,
    ...fields,
  };
}

/** Claims the deliveries to all webhooks that are due, up to `limit` of them. */
export async function claimWebhookDeliveries(
  store: Store,
  { limit, ...claim }: Claim & { readonly limit: number; readonly maxLeased: number },
): Promise<WebhookDelivery[]> {
  const claimed: WebhookDelivery[] = [];
  for (const { webhook } of await store.listDueWebhooks()) {
    while (claimed.length < limit) {
      const delivery = await store.claimWebhookDelivery({ ...claim, webhook, afterProject: "" });
      if (delivery === null) break;
      claimed.push(delivery);
    }
  }
  return claimed;
}

export function anAnnouncement(fields: Partial<Announcement> = {}): Announcement {
  const number = next();
  return { webhookId: `wh_${number}`, eventId: `evt_${number}`, webhook: "ci", ...fields };
}

export function anUpload(fields: Partial<Upload> = {}): Upload {
  return {
    id: `upload_${next()}` as UploadId,
    project: PROJECT,
    filename: "input.jsonl",
    purpose: "batch",
    bytes: 1_000,
    mimeType: "application/jsonl",
    status: "pending",
    createdAtMs: NOW_MS,
    expiresAtMs: NOW_MS + 3_600_000,
    fileExpiresAfterSeconds: null,
    fileId: null,
    ...fields,
  };
}

export function aPart({ id: uploadId }: Upload, fields: Partial<UploadPart> = {}): UploadPart {
  const id = `part_${next()}` as PartId;
  return { id, uploadId, bytes: 500, blobKey: `parts/${id}`, createdAtMs: NOW_MS, ...fields };
}

export const aReceipt = (fields: Partial<Receipt> = {}): Receipt => ({
  project: PROJECT,
  key: "key-1",
  owner: "somebody",
  fingerprint: "f".repeat(64),
  answer: '{"object":"file","filename":"Grüße ☃"}',
  ...fields,
});

/** The clock of the stores under test. A test begins at {@link NOW_MS} and moves it. */
export const storeClock = new FakeClock(NOW_MS);

/** The store at that date, and from then on. */
export function at(store: Store, dateMs: number): Store {
  storeClock.setBy(dateMs - storeClock.nowMs());
  return store;
}

export const claimBy = (owner: string): Claim => ({
  owner,
  ttlMs: LEASE_TTL_MS,
});

/** A time at which the leases of {@link claimBy} have run out. */
export const AFTER_LEASES_MS = NOW_MS + LEASE_TTL_MS;

/** A time at which no failover takes back what came before, so that the journals of final batches may go. */
export const SETTLED_MS = NOW_MS + 60_000;

/** Declares blobs like a writer whose blobs are durable. */
async function declare(store: Store, ...stored: readonly ({ blobKey: string } | null)[]) {
  for (const one of stored) {
    if (one === null) continue;
    await store.revokeIntentIfDeclared(one.blobKey);
    await store.declareBlobs([one.blobKey], LEASE_TTL_MS);
  }
}

export async function insertFile(
  store: Store,
  file: StoredFile,
  receipt?: Receipt,
): Promise<boolean> {
  await declare(store, file);
  return store.insertFileIfDeclared(file, { receipt });
}

export async function insertPart(store: Store, part: UploadPart): Promise<boolean> {
  await declare(store, part);
  return (await store.insertPartIfPending(part)) === "stored";
}

export async function completeUpload(
  store: Store,
  { upload, file, receipt }: { upload: Upload; file: StoredFile; receipt?: Receipt | undefined },
): Promise<boolean> {
  await declare(store, file);
  return store.completeUploadIfPending(upload, file, { receipt });
}

export async function finishBatch(
  store: Store,
  lease: BatchLease,
  result: Result = NO_RESULT,
): Promise<boolean> {
  await declare(store, result.output, result.error);
  const found = await store.findBatch({ project: PROJECT, id: lease.batchId });
  const counts = result.counts ?? found?.counts ?? { completed: 0, failed: 0 };
  return store.finishBatchIfLeased(lease, { ...result, counts });
}

/** Inserts a batch that waits for validation, and its input file. */
export async function insertBatch(store: Store, fields: Partial<Batch> = {}) {
  const input = aFile({ project: fields.project ?? PROJECT });
  const batch = aBatch({ inputFileId: input.id, ...fields });
  await insertFile(store, input);
  await store.insertBatch(batch);
  return { input, batch };
}

/** Inserts a batch in progress, with one chunk for each of `models`. No other batch may wait for validation. */
export async function startBatch(
  store: Store,
  models: readonly string[] = ["llama"],
  fields: Partial<Batch> = {},
) {
  const inserted = await insertBatch(store, fields);
  const claimed = await store.claimBatchToValidate(claimBy("validator"));
  if (claimed === null) throw new Error("nothing to validate");
  await store.startBatchIfLeased(claimed.lease, aPlan(models));
  return inserted;
}

/** Claims the first free chunk of the batch and model; null when there is none. */
export async function claimFirst(
  store: Pick<Store, "claimChunks">,
  { batchId, model, ...claim }: Claim & { readonly batchId: BatchId; readonly model: string },
): Promise<ClaimedChunk | null> {
  const wanted = [{ batchId, model, count: 1 }];
  const [claimed = null] = await store.claimChunks({ ...claim, wanted });
  return claimed;
}

export async function claimChunk(
  store: Store,
  { owner = "worker", model = "llama" } = {},
): Promise<ClaimedChunk> {
  const runnable = (await store.listRunnable()).find((each) => each.model === model);
  const claimed =
    runnable === undefined
      ? null
      : await claimFirst(store, { ...claimBy(owner), batchId: runnable.batchId, model });
  if (claimed === null) throw new Error("no chunk to claim");
  return claimed;
}

/** Resolves to the models with a chunk that can be claimed. */
export async function openRoutes(store: Store): Promise<string[]> {
  const runnable = await store.listRunnable();
  return [...new Set(runnable.map(({ model }) => model))].sort();
}

/** Inserts a batch whose only chunk is closed. */
export async function finalizingBatch(store: Store, fields: Partial<Batch> = {}) {
  const started = await startBatch(store, ["llama"], fields);
  const { lease } = await claimChunk(store);
  const segment = aSegment({ completed: 10 });
  await store.closeChunkIfLeased(lease, segment);
  return { ...started, segment, lease };
}

export async function claimToFinalize(store: Store): Promise<BatchLease> {
  const claimed = await store.claimBatchToFinalize(claimBy("finalizer"));
  if (claimed === null) throw new Error("nothing to finalize");
  return claimed.lease;
}
