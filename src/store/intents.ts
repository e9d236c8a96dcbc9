/**
 * The part of the store that knows which blobs are on their way to a row. A blob is durable before the row that names
 * it, so between the two only an intent tells it from garbage.
 *
 * An intent is written before its blob, and the commit that writes the row consumes it. A commit without its intent
 * must change nothing. The intent of a dead writer expires and is revoked. A blob with neither a row nor an
 * intent can therefore never get a row, however late its writer wakes up.
 */
export interface IntentStore {
  /** Announces blobs under keys that were never used before. */
  declareBlobs(blobKeys: readonly string[], ttlMs: number): Promise<void>;
  /** Extends the intents that still stand. */
  renewIntents(blobKeys: readonly string[], ttlMs: number): Promise<void>;
  /** Ends an intent. Returns false when there is none: the row was written, or the intent was revoked before. */
  revokeIntentIfDeclared(blobKey: string): Promise<boolean>;
  /** Ends the intents that have expired. Their blobs, which may not exist, are garbage from now on. */
  revokeExpiredIntents(limit: number): Promise<string[]>;
  /**
   * Finds those of `blobKeys` that no row names and no row can name any more. Blobs of files and parts are garbage
   * when they have no intent. Segments are garbage when their lease is not held any more.
   */
  findGarbage(blobKeys: readonly string[]): Promise<string[]>;
}
