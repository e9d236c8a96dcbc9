import type { Clock } from "../clock.ts";
import type { Log } from "../log.ts";
import type { Store } from "../store/store.ts";
import type { Leases } from "./lease.ts";

export interface ExpiryDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly log: Log;
  readonly leases: Leases;
  /** Told when batches are to stop, or chunks were closed. */
  readonly onStopping: () => void;
  /** Told when there are bytes that nobody can ask for any more. */
  readonly onExpired: () => void;
}

/** Ends whatever has come to the end of its time. */
export async function expireDue(deps: ExpiryDeps): Promise<boolean> {
  await stopBatches(deps);
  await expireFilesAndUploads(deps);
  return false;
}

/** Ends the windows that are over, and closes the chunks of stopping batches whose holder is gone. */
async function stopBatches(deps: ExpiryDeps): Promise<void> {
  const { store, clock, log, leases, onStopping } = deps;
  await leases.renewIfLate();
  const expired = await store.stopExpiredBatches(clock.nowMs());
  for (const batch of expired) log.info({ batch }, "batch.window_over");
  const closedCount = await store.closeAbandonedChunks(clock.nowMs());
  if (expired.length > 0 || closedCount > 0) onStopping();
}

/** For clients they are gone already, by the clock; this lets their bytes go. */
async function expireFilesAndUploads(deps: ExpiryDeps): Promise<void> {
  const { store, clock, log, onExpired } = deps;
  const files = await store.deleteExpiredFiles(clock.nowMs());
  for (const file of files) log.info({ file }, "file.expired");
  const uploads = await store.expireUploads(clock.nowMs());
  for (const upload of uploads) log.info({ upload }, "upload.expired");
  if (files.length > 0 || uploads.length > 0) onExpired();
}
