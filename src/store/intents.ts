/**
 * The part of the store that knows which blobs are on their way to a row. A blob is durable before the row that names
 * it, so between the two only an intent tells it from garbage.
 *
 * An intent is written before its blob, and the commit that writes the row consumes it. A commit whose intent is gone
 * must change nothing. The intent of a writer that is gone runs out and is given up. A blob with neither a row nor an
 * intent can therefore never get a row, however late its writer wakes up.
 */
export interface IntentStore {
  /** Announces blobs under keys that were never used before. */
  declareBlobs(blobKeys: readonly string[], ttlMs: number): Promise<void>;
  /** Extends the intents that still stand. */
  renewIntents(blobKeys: readonly string[], ttlMs: number): Promise<void>;
  /** Ends an intent. Returns false when there is none: the row was written, or the blob was given up before. */
  giveUpBlobIfDeclared(blobKey: string): Promise<boolean>;
  /** Ends the intents that have run out; the blobs, which may not exist, are garbage from now on. */
  giveUpExpiredBlobs(limit: number): Promise<string[]>;
  /**
   * Finds those of `blobKeys` that no row names and no row can name any more. Blobs of files and parts are garbage
   * when they have no intent. Segments are garbage when their lease is not held any more.
   */
  findGarbage(blobKeys: readonly string[]): Promise<string[]>;
}
