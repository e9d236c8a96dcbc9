/**
 * Removes bytes that nobody needs: journals of final batches, content of deleted files, and blobs without
 * a row, which a crash between blob and row leaves behind. Each step deletes the blob first and the row last,
 * so a sweep that is cut short is simply done again.
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
/** A blob this old without a row is not about to get one. */
const ORPHAN_AGE_MS = 60 * 60 * 1000;
export const ORPHAN_SWEEP_EVERY_MS = 60 * 60 * 1000;

/** Clears one page of what is finished with; true when there may be more. */
export async function sweep({ store, blobs, log }: SweeperDeps): Promise<boolean> {
  const batches = await store.listBatchesToTidy(PAGE);
  for (const batchId of batches) {
    await blobs.deleteAll(journalPrefix(batchId));
    await store.forgetChunks(batchId);
    log.debug({ batch: batchId }, "journal.removed");
  }
  const files = await store.listUnusedFiles(PAGE);
  for (const { id, blobKey } of files) {
    await blobs.delete(blobKey);
    await store.forgetFile(id);
    log.debug({ file: id }, "file.removed");
  }
  return batches.length === PAGE || files.length === PAGE;
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
  for await (const { key, modifiedAtMs } of blobs.list("files/")) {
    if (modifiedAtMs < oldestMs) candidates.push(key);
    if (candidates.length === LOOKUP_PAGE) await deleteUnknown();
  }
  await deleteUnknown();
  return false;
}
