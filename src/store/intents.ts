/**
 * The part of the store that knows which blobs are on their way to a row. A blob is durable before the row that names
 * it, so between the two nothing but an intent tells it from garbage.
 *
 * An intent is written before its blob, and the commit that writes the row consumes it. A commit whose intent is gone
 * changes nothing. The intent of a writer that is gone runs out and is given up. A blob with neither a row nor an
 * intent can therefore never get a row, however late its writer wakes up.
 */
export interface IntentStore {
  /** Announces blobs under keys that were never used before. */
  declareBlobs(blobKeys: readonly string[], ttlMs: number): Promise<void>;
  /** Extends the intents that still stand. */
  renewIntents(blobKeys: readonly string[], ttlMs: number): Promise<void>;
  /** Ends an intent. False when there is none: the row was written, or the blob was given up before. */
  giveUpBlobIfDeclared(blobKey: string): Promise<boolean>;
  /** Ends the intents that have run out; the blobs, which may not exist, are garbage from now on. */
  giveUpExpiredBlobs(limit: number): Promise<string[]>;
  /**
   * Those of `blobKeys` that no row names and that none can name any more: of files and parts those without an intent,
   * of segments those whose lease is not held any more.
   */
  findGarbage(blobKeys: readonly string[]): Promise<string[]>;
}
