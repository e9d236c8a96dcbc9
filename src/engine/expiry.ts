import type { Clock } from "../clock.ts";
import type { Log } from "../log.ts";
import type { Store } from "../store/store.ts";

export interface ExpiryDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly log: Log;
  /** Told when batches are to stop, or chunks were closed. */
  readonly onStopping: () => void;
}

/** Ends the windows that are over, and closes the chunks of stopping batches whose holder is gone. */
export async function expireDue({ store, clock, log, onStopping }: ExpiryDeps): Promise<boolean> {
  const expired = await store.stopExpiredBatches(clock.nowMs());
  for (const batch of expired) log.info({ batch }, "batch.window_over");
  const closedCount = await store.closeAbandonedChunks(clock.nowMs());
  if (expired.length > 0 || closedCount > 0) onStopping();
  return false;
}
