/**
 * Signals between the processes that share a store. A nudge may only save time: every process also looks by itself, at
 * least every ten seconds. So a store may lose nudges, and a store for one process sends none.
 */

/**
 * What has happened: a batch waits for validation, has chunks to claim, or is to stop; results are to be delivered; a
 * delivery under way is to be ended; a key was made or revoked; or an operator asks for a reload.
 */
export type StoreNudge =
  | "batch_created"
  | "batch_started"
  | "batch_stopping"
  | "delivery_due"
  | "delivery_cancelled"
  | "keys_changed"
  | "reload_asked";

export interface NudgeStore {
  /** Calls back for nudges, also for those that this process has sent. */
  onNudge(listener: (nudge: StoreNudge) => void): void;
  /** Asks every process to read its configuration again. */
  nudgeToReload(): Promise<void>;
  /** Says that a batch that stops has a chunk less that is open: it may be ready for its files, or for its removal. */
  nudgeStopping(): Promise<void>;
}
