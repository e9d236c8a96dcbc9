/**
 * Keeps the intents of this process: blobs whose row is still to be written (`store/intents.ts`). An intent is renewed
 * while its work continues, so the sweep cannot take the blob of slow work. Work that ends without a row releases the
 * intent first and deletes the blob afterwards. It must never do so in the other order: a commit that was reported as
 * failed may have succeeded, and then its blob must stay.
 */

import type { IntentStore } from "../store/intents.ts";
import type { Log } from "../telemetry/log.ts";
import type { Blobs } from "./blobs.ts";

/** The time without a renewal after which a writer counts as dead. */
const INTENT_TTL_MS = 5 * 60 * 1000;

export interface BlobIntentsDeps {
  readonly store: IntentStore;
  readonly blobs: Blobs;
  readonly log: Log;
}

export class BlobIntents {
  readonly #deps: BlobIntentsDeps;
  readonly #live = new Set<string>();

  constructor(deps: BlobIntentsDeps) {
    this.#deps = deps;
  }

  /**
   * Declares the blobs while `work` writes them and then the rows that name them. If it throws or returns null, its
   * blobs are removed.
   */
  async during<T>(blobKeys: readonly string[], work: () => Promise<T>): Promise<T> {
    const { store } = this.#deps;
    await store.declareBlobs(blobKeys, INTENT_TTL_MS);
    for (const key of blobKeys) this.#live.add(key);
    try {
      const made = await work();
      if (made === null) for (const key of blobKeys) await this.#revoke(key);
      return made;
    } catch (error) {
      for (const key of blobKeys) await this.#revoke(key);
      throw error;
    } finally {
      for (const key of blobKeys) this.#live.delete(key);
    }
  }

  /**
   * Renews all intents. Call this several times within the lifetime of an intent, and before expired ones are revoked.
   */
  async renew(): Promise<void> {
    const { store } = this.#deps;
    if (this.#live.size === 0) return;
    await store.renewIntents([...this.#live], INTENT_TTL_MS);
  }

  async #revoke(blobKey: string): Promise<void> {
    const { store, blobs, log } = this.#deps;
    try {
      if (await store.revokeIntentIfDeclared(blobKey)) await blobs.delete(blobKey);
    } catch (err) {
      log.warn({ blob: blobKey, err }, "blob.left_behind");
    }
  }
}

/** The error for a writer that renewed its intent too late. The sweep has taken its blob for garbage. */
export class IntentRevoked extends Error {
  override readonly name = "IntentRevoked";

  constructor(blobKey: string) {
    super(`the intent of the blob ${blobKey} was revoked before its row could be written`);
  }
}
