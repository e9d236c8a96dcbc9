/**
 * Removes what nobody needs: journals of final batches, content of deleted files, parts of uploads that have
 * ended, old idempotency keys, and blobs without a row, which a crash between blob and row leaves behind. Each
 * step deletes the blob first and the row last, so a sweep that is cut short is simply done again. What
 * cannot be removed is told and left for the next sweep; it holds up nothing else.
 */
import type { Blobs } from "../blobs/blobs.ts";
import type { Clock } from "../clock.ts";
import type { Log } from "../log.ts";
import type { Store } from "../store/store.ts";
import { journalPrefix } from "./journal.ts";

export interface SweeperDeps {
  readonly store: Store;
  readonly blobs: Blobs;
  readonly clock: Clock;
  readonly log: Log;
}

const PAGE = 100;
const LOOKUP_PAGE = 500;
/** Where blobs stand whose rows are written after them. */
const ORPHAN_PREFIXES = ["files/", "parts/", "journal/"];
/** A blob this old without a row is not about to get one. */
const ORPHAN_AGE_MS = 60 * 60 * 1000;
export const ORPHAN_SWEEP_EVERY_MS = 60 * 60 * 1000;

/** Clears one page of what is finished with; true when there may be more. */
export async function sweep(deps: SweeperDeps): Promise<boolean> {
  await deps.store.forgetIdempotencyKeys(deps.clock.nowMs());
  const counts = [await sweepJournals(deps), await sweepFiles(deps), await sweepParts(deps)];
  return counts.includes(PAGE);
}

async function sweepJournals({ store, blobs, log }: SweeperDeps): Promise<number> {
  return removeEach(await store.listBatchesToTidy(PAGE), log, async (batchId) => {
    await blobs.deleteAll(journalPrefix(batchId));
    await store.forgetChunks(batchId);
    log.debug({ batch: batchId }, "journal.removed");
  });
}

async function sweepFiles({ store, blobs, log }: SweeperDeps): Promise<number> {
  return removeEach(await store.listUnusedFiles(PAGE), log, async ({ id, blobKey }) => {
    await blobs.delete(blobKey);
    await store.forgetFile(id);
    log.debug({ file: id }, "file.removed");
  });
}

async function sweepParts({ store, blobs, log }: SweeperDeps): Promise<number> {
  return removeEach(await store.listUploadsToTidy(PAGE), log, async (uploadId) => {
    for (const { blobKey } of await store.listParts(uploadId)) await blobs.delete(blobKey);
    await store.forgetParts(uploadId);
    log.debug({ upload: uploadId }, "upload.parts_removed");
  });
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

/** Deletes blobs that no row names and that are too old to be on their way to one. */
export async function sweepOrphans({ store, blobs, clock, log }: SweeperDeps): Promise<boolean> {
  const oldestMs = clock.nowMs() - ORPHAN_AGE_MS;
  let candidates: string[] = [];
  const deleteUnknown = async () => {
    for (const key of await store.findUnknownBlobKeys(candidates)) {
      await blobs.delete(key);
      log.info({ blob: key }, "orphan.removed");
    }
    candidates = [];
  };
  for (const prefix of ORPHAN_PREFIXES) {
    for await (const { key, modifiedAtMs } of blobs.list(prefix)) {
      if (modifiedAtMs < oldestMs) candidates.push(key);
      if (candidates.length === LOOKUP_PAGE) await deleteUnknown();
    }
  }
  await deleteUnknown();
  return false;
}
