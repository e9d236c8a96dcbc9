/**
 * Ends the windows of batches and the lifetimes of files and uploads when their time is over. It only marks and
 * deletes rows; the bytes are the work of `sweeper.ts`. It goes by the clock of the store alone.
 */
import { setImmediate as nextTurn } from "node:timers/promises";
import type { Store } from "../../store/store.ts";
import type { Log } from "../../telemetry/log.ts";
import type { Leases } from "../steps/lease.ts";

export interface ExpiryDeps {
  readonly store: Store;
  readonly log: Log;
  readonly leases: Leases;
  /** The callback for batches that are to stop, or chunks that were closed. */
  readonly onStopping: () => void;
  /** The callback for bytes that no client can ask for any more. */
  readonly onExpired: () => void;
}

/** Ends all batches, files and uploads whose time is over. */
export async function expireDue(deps: ExpiryDeps): Promise<void> {
  await stopBatches(deps);
  await expireFilesAndUploads(deps);
}

/** Ends the windows that are over, and closes the chunks of stopping batches that have no holder. */
async function stopBatches(deps: ExpiryDeps): Promise<void> {
  const { store, log, leases, onStopping } = deps;
  await leases.renewIfLate();
  const expiredCount = await allPages(
    () => store.stopExpiredBatches(),
    (batch) => log.info({ batch }, "batch.window_over"),
  );
  const closedCount = await store.closeUnheldChunks();
  if (expiredCount > 0 || closedCount > 0) onStopping();
}

/** Deletes expired files and uploads. Clients cannot see them any more, and their bytes can now be removed. */
async function expireFilesAndUploads(deps: ExpiryDeps): Promise<void> {
  const { store, log, onExpired } = deps;
  const fileCount = await allPages(
    () => store.deleteExpiredFiles(),
    (file) => log.info({ file }, "file.expired"),
  );
  const uploadCount = await allPages(
    () => store.expireUploads(),
    (upload) => log.info({ upload }, "upload.expired"),
  );
  if (fileCount > 0 || uploadCount > 0) onExpired();
}

/**
 * Runs `endPage` until it ends nothing, and returns the total. Thousands may expire together, so each page has a turn of
 * the event loop.
 */
async function allPages<T>(
  endPage: () => Promise<readonly T[]>,
  onEnded: (ended: T) => void,
): Promise<number> {
  let count = 0;
  for (;;) {
    const page = await endPage();
    if (page.length === 0) return count;
    for (const ended of page) onEnded(ended);
    count += page.length;
    await nextTurn();
  }
}
