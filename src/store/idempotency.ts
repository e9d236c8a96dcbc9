/**
 * The part of the store that makes a repeated request harmless. A key is claimed before the work, and the claim is
 * renewed while the work lasts. The commit that stores the object also records its answer, so a crash leaves either
 * both or neither. A request that lost its claim must store nothing: only one of two requests under one key makes its
 * object.
 */
import type { Claim } from "./claim.ts";

/** The time counts from the claim of a key, or its last renewal. A client may repeat a request for so long. */
export const IDEMPOTENCY_KEY_KEPT_MS = 24 * 60 * 60 * 1000;

/**
 * A request that the client may repeat: its key, which is unique in the project for 24 hours, and a digest of
 * everything in the request that shapes the answer.
 */
export interface IdempotentRequest {
  readonly project: string;
  readonly key: string;
  readonly fingerprint: string;
}

/** The rejection of a request that no longer holds its key. Nothing is stored. */
export class IdempotencyKeyLost extends Error {
  override readonly name = "IdempotencyKeyLost";
}

/** The state of an `Idempotency-Key` when it comes in. */
export type IdempotencyState =
  /** The caller holds the key, until the answer is recorded or the key is released. */
  | { readonly kind: "new" }
  | { readonly kind: "in_progress" }
  /** `answer` is the JSON body of the first answer. */
  | { readonly kind: "answered"; readonly fingerprint: string; readonly answer: string };

/**
 * The answer to remember, recorded in the same commit as its object. The commit is refused with {@link
 * IdempotencyKeyLost} when `owner` no longer holds the key.
 */
export interface Receipt extends IdempotentRequest {
  /** The owner of the claim under which the work was done. */
  readonly owner: string;
  readonly answer: string;
}

/** Writes the receipt of the object that is about to be stored. */
export type ReceiptFor<Made> = (made: Made) => Receipt;

export interface IdempotencyStore {
  /**
   * Takes the key for the caller, unless it has been in use in the last 24 hours. Another request may take over a key
   * in progress when its `ttlMs` has passed without a renewal: the first request counts as gone. A takeover begins
   * the 24 hours anew. The owner names one request, not one process.
   */
  claimIdempotencyKey(project: string, key: string, claim: Claim): Promise<IdempotencyState>;
  /** Extends a claim, and with it the 24 hours. Returns false when the owner no longer holds the key. */
  renewIdempotencyKeyIfHeld(project: string, key: string, claim: Claim): Promise<boolean>;
  /** Frees the key of a request that came to nothing. Returns false when the owner no longer holds it. */
  releaseIdempotencyKeyIfHeld(project: string, key: string, owner: string): Promise<boolean>;
  /** Drops keys older than 24 hours. */
  forgetIdempotencyKeys(): Promise<void>;
}
