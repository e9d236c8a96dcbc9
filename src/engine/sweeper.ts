/**
 * Removes what is no longer needed: deleted batches, journals of final batches, content of deleted files, ended uploads and their parts, old
 * idempotency keys and tombstones, and garbage. Garbage is a blob without a row that can never get one. Each step deletes the blob
 * first and the row last, so a sweep that is cut short is simply done again. An item that cannot be removed is logged
 * and left for the next sweep; it holds up no other. A damaged database ends the sweep.
 *
 * The sweeper must never delete by age: while the database is locked or the disk is full, the row of a blob may be
 * hours behind. The store knows which blobs are garbage (`findGarbage`), and garbage stays garbage, because the store
 * refuses the commit that would name the blob. The deletion is therefore safe at any later time, whichever process
 * carries it out.
 */
import type { BlobIntents } from "../blobs/blob-intents.ts";
import type { Blobs } from "../blobs/blobs.ts";
import { isDamaged } from "../store/failures.ts";
import { journalPrefix } from "../store/segment-key.ts";
import type { Store } from "../store/store.ts";
import type { Log } from "../telemetry/log.ts";

export interface SweeperDeps {
  readonly store: Store;
  readonly blobs: Blobs;
  readonly intents: BlobIntents;
  readonly log: Log;
}

const PAGE = 100;
const LOOKUP_PAGE = 500;
/** The prefixes of blobs whose rows are written after them. */
const ORPHAN_PREFIXES = ["files/", "parts/", "journal/", "deliveries/"];
/**
 * The time between two sweeps of all blobs. A sweep costs most where there are many blobs, and a crash leaves few
 * orphans.
 */
export const ORPHAN_SWEEP_EVERY_MS = 60 * 60 * 1000;

/** Clears one page of finished data; returns true when there may be more. */
export async function sweep(deps: SweeperDeps): Promise<boolean> {
  await deps.store.forgetIdempotencyKeys();
  await deps.store.forgetTombstones();
  await deps.store.forgetUploads();
  const counts = [
    await deps.store.settleOverlookedDeliveries(PAGE),
    await sweepDeleted(deps),
    await sweepJournals(deps),
    await sweepFiles(deps),
    await sweepParts(deps),
    await sweepRevoked(deps),
  ];
  return counts.includes(PAGE);
}

async function sweepJournals({ store, blobs, log }: SweeperDeps): Promise<number> {
  return removeEach(await store.listBatchesToTidy(PAGE), log, async (batchId) => {
    await blobs.deleteAll(journalPrefix(batchId));
    await store.forgetChunks(batchId);
    log.debug({ batch: batchId }, "journal.removed");
  });
}

/** Removes deleted batches. */
async function sweepDeleted({ store, blobs, log }: SweeperDeps): Promise<number> {
  return removeEach(await store.listDeletedBatches(PAGE), log, async (batchId) => {
    await blobs.deleteAll(journalPrefix(batchId));
    await store.forgetBatch(batchId);
    log.debug({ batch: batchId }, "batch.removed");
  });
}

async function sweepFiles(deps: SweeperDeps): Promise<number> {
  const { store, log } = deps;
  const files = await store.listUnusedFiles(PAGE);
  const deletedKeys = await deleteBlobs(
    files.map(({ blobKey }) => blobKey),
    deps,
  );
  const deleted = files.filter(({ blobKey }) => deletedKeys.has(blobKey)).map(({ id }) => id);
  const pages = deleted.length === 0 ? [] : [deleted];
  const removedCount = await removeEach(pages, log, (page) => store.forgetFiles(page));
  if (removedCount === 0) return 0;
  for (const file of deleted) log.debug({ file }, "file.removed");
  return deleted.length;
}

async function sweepParts({ store, blobs, log }: SweeperDeps): Promise<number> {
  return removeEach(await store.listUploadsToTidy(PAGE), log, async (uploadId) => {
    for await (const parts of store.partPages(uploadId)) {
      await blobs.delete(...parts.map(({ blobKey }) => blobKey));
    }
    await store.forgetParts(uploadId);
    log.debug({ upload: uploadId }, "upload.parts_removed");
  });
}

/** Removes the blobs that vanished writers had declared. */
async function sweepRevoked(deps: SweeperDeps): Promise<number> {
  const { store, intents } = deps;
  // The renewal comes first: after a pause of the machine this process must not revoke its own intents.
  await intents.renew();
  const keys = await store.revokeExpiredIntents(PAGE);
  await deleteGarbage(keys, deps);
  return keys.length;
}

/** Returns how many could be removed. */
export async function removeEach<T>(
  things: readonly T[],
  log: Log,
  remove: (thing: T) => Promise<void>,
): Promise<number> {
  let removedCount = 0;
  for (const thing of things) {
    try {
      await remove(thing);
      removedCount++;
    } catch (err) {
      // What was read before the damage was found says nothing either.
      if (isDamaged(err)) throw err;
      log.error({ thing, err }, "sweep.failed");
    }
  }
  return removedCount;
}

/** Deletes all garbage, which a crash leaves behind. */
export async function sweepOrphans(deps: SweeperDeps): Promise<boolean> {
  const { store, blobs } = deps;
  let candidates: string[] = [];
  for (const prefix of ORPHAN_PREFIXES) {
    for await (const { key } of blobs.list(prefix)) {
      candidates.push(key);
      if (candidates.length < LOOKUP_PAGE) continue;
      await deleteGarbage(candidates, deps);
      candidates = [];
    }
  }
  await deleteGarbage(candidates, deps);
  await blobs.removeUnfinished((keys) => store.findGarbage(keys));
  return false;
}

async function deleteGarbage(keys: readonly string[], deps: SweeperDeps): Promise<void> {
  const deletedKeys = await deleteBlobs(await deps.store.findGarbage(keys), deps);
  for (const blob of deletedKeys) deps.log.info({ blob }, "orphan.removed");
}

/** Deletes all blobs in one call. If that fails, it deletes each by itself, so one blob cannot hold up the others. */
async function deleteBlobs(
  keys: readonly string[],
  { blobs, log }: SweeperDeps,
): Promise<ReadonlySet<string>> {
  if (keys.length === 0) return new Set();
  try {
    await blobs.delete(...keys);
    return new Set(keys);
  } catch {
    const deletedKeys = new Set<string>();
    await removeEach(keys, log, async (key) => {
      await blobs.delete(key);
      deletedKeys.add(key);
    });
    return deletedKeys;
  }
}
