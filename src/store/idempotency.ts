/**
 * The part of the store that makes a repeated request harmless. A key is claimed before the work, and the claim is renewed
 * while the work lasts; the answer is recorded in the same commit as the object it tells of, so a crash leaves either both or
 * neither. A request whose claim went to another stores nothing: of two under one key only one makes its object.
 */
import type { Claim } from "./claim.ts";

/** From the claim of a key, or its last renewal; also how long a client may wait before it repeats a request. */
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

/** Rejects what would store an object whose request no longer holds its key. Nothing is stored. */
export class IdempotencyKeyLost extends Error {
  override readonly name = "IdempotencyKeyLost";
}

/** What an `Idempotency-Key` stands for when it comes in. */
export type IdempotencyState =
  /** It is the caller's now, until the answer is recorded or the key is released. */
  | { readonly kind: "new" }
  | { readonly kind: "in_progress" }
  /** `answer` is the JSON body of the first answer. */
  | { readonly kind: "answered"; readonly fingerprint: string; readonly answer: string };

/**
 * The answer to remember, recorded in the same commit as the object it tells of. When `owner` no longer holds the key, the
 * commit is refused with {@link IdempotencyKeyLost}.
 */
export interface Receipt extends IdempotentRequest {
  /** Of the claim under which the work was done. */
  readonly owner: string;
  readonly answer: string;
}

/** Writes the receipt of what is about to be stored. */
export type ReceiptFor<Made> = (made: Made) => Receipt;

export interface IdempotencyStore {
  /**
   * Takes the key for the caller, unless it stands for something already (in the last 24 hours). A key in
   * progress may be taken over when its `ttlMs` has passed without a renewal: its request is taken for gone. A takeover
   * begins its 24 hours anew. The owner names one request, not one process.
   */
  claimIdempotencyKey(project: string, key: string, claim: Claim): Promise<IdempotencyState>;
  /** Extends a claim, and with it the 24 hours. False when the owner no longer holds the key. */
  renewIdempotencyKeyIfHeld(project: string, key: string, claim: Claim): Promise<boolean>;
  /** The request came to nothing: the key is free again. False when the owner no longer holds it. */
  releaseIdempotencyKeyIfHeld(project: string, key: string, owner: string): Promise<boolean>;
  /** Drops keys older than 24 hours. */
  forgetIdempotencyKeys(): Promise<void>;
}
