/**
 * What this process is writing: blobs whose row is to follow (`store/intents.ts`). An intent is renewed for as long as
 * the work that declared it goes on, so a sweep cannot take the blob, however slow that work is. When the work ends
 * without a row, the intent is given up before the blob is deleted: a commit that was reported as failed may have
 * been made all the same, and then its blob must stay.
 */

import type { Clock } from "../clock.ts";
import type { IntentStore } from "../store/intents.ts";
import type { Log } from "../telemetry/log.ts";
import type { Blobs } from "./blobs.ts";

/** Without a renewal for this long the writer is taken for gone. */
const INTENT_TTL_MS = 5 * 60 * 1000;

export interface BlobIntentsDeps {
  readonly store: IntentStore;
  readonly blobs: Blobs;
  readonly clock: Clock;
  readonly log: Log;
}

export class BlobIntents {
  readonly #deps: BlobIntentsDeps;
  readonly #live = new Set<string>();

  constructor(deps: BlobIntentsDeps) {
    this.#deps = deps;
  }

  /**
   * Declares the blobs for as long as `work` goes on, which is to write them and then the rows that name them. When it
   * throws, or comes to nothing (null), what it has written is removed.
   */
  async during<T>(blobKeys: readonly string[], work: () => Promise<T>): Promise<T> {
    const { store, clock } = this.#deps;
    await store.declareBlobs(blobKeys, clock.nowMs() + INTENT_TTL_MS);
    for (const key of blobKeys) this.#live.add(key);
    try {
      const made = await work();
      if (made === null) for (const key of blobKeys) await this.#giveUp(key);
      return made;
    } catch (error) {
      for (const key of blobKeys) await this.#giveUp(key);
      throw error;
    } finally {
      for (const key of blobKeys) this.#live.delete(key);
    }
  }

  /** To be called a few times before an intent would run out, and before those of others are given up. */
  async renew(): Promise<void> {
    const { store, clock } = this.#deps;
    if (this.#live.size === 0) return;
    await store.renewIntents([...this.#live], clock.nowMs() + INTENT_TTL_MS);
  }

  async #giveUp(blobKey: string): Promise<void> {
    const { store, blobs, log } = this.#deps;
    try {
      if (await store.giveUpBlobIfDeclared(blobKey)) await blobs.delete(blobKey);
    } catch (err) {
      log.warn({ blob: blobKey, err }, "blob.left_behind");
    }
  }
}

/** A writer that could not renew its intent in time: the sweep has taken its blob for garbage. */
export class BlobGivenUp extends Error {
  override readonly name = "BlobGivenUp";

  constructor(blobKey: string) {
    super(`the blob ${blobKey} was given up before its row could be written`);
  }
}
