/**
 * Removes what nobody needs: journals of final batches, content of deleted files, parts of uploads that have
 * ended, old idempotency keys, and garbage, which is a blob without a row that can never get one. Each
 * step deletes the blob first and the row last, so a sweep that is cut short is simply done again. What
 * cannot be removed is told and left for the next sweep; it holds up nothing else.
 *
 * The age of a blob says nothing: while the database is locked or the disk is full, the row of a blob may be hours
 * behind. The store knows which blobs are garbage (`findGarbage`), and garbage stays garbage, because the commit
 * that would name the blob is refused from then on. So nothing happens between that answer and the deletion that could
 * make the deletion wrong, whichever process carries it out.
 */
import type { BlobIntents } from "../blobs/blob-intents.ts";
import type { Blobs } from "../blobs/blobs.ts";
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
/** Where blobs stand whose rows are written after them. */
const ORPHAN_PREFIXES = ["files/", "parts/", "journal/"];
/** Looking at every blob costs most where there are many, and a crash leaves few. */
export const ORPHAN_SWEEP_EVERY_MS = 60 * 60 * 1000;

/** Clears one page of what is finished with; true when there may be more. */
export async function sweep(deps: SweeperDeps): Promise<boolean> {
  await deps.store.forgetIdempotencyKeys();
  const counts = [
    await sweepJournals(deps),
    await sweepFiles(deps),
    await sweepParts(deps),
    await sweepGivenUp(deps),
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

async function sweepFiles(deps: SweeperDeps): Promise<number> {
  const { store, log } = deps;
  const files = await store.listUnusedFiles(PAGE);
  const deletedKeys = await deleteBlobs(
    files.map(({ blobKey }) => blobKey),
    deps,
  );
  const deleted = files.filter(({ blobKey }) => deletedKeys.has(blobKey));
  return removeEach(deleted, log, async ({ id }) => {
    await store.forgetFile(id);
    log.debug({ file: id }, "file.removed");
  });
}

async function sweepParts({ store, blobs, log }: SweeperDeps): Promise<number> {
  return removeEach(await store.listUploadsToTidy(PAGE), log, async (uploadId) => {
    const parts = await store.listParts(uploadId);
    await blobs.delete(...parts.map(({ blobKey }) => blobKey));
    await store.forgetParts(uploadId);
    log.debug({ upload: uploadId }, "upload.parts_removed");
  });
}

/** What writers that are gone had declared. */
async function sweepGivenUp(deps: SweeperDeps): Promise<number> {
  const { store, intents } = deps;
  // After a pause of the machine this process must not give up its own blobs.
  await intents.renew();
  const keys = await store.giveUpExpiredBlobs(PAGE);
  await deleteGarbage(keys, deps);
  return keys.length;
}

/** How many could be removed. */
async function removeEach<T>(
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
