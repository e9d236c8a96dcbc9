/**
 * The part of the store that makes a repeated request harmless. A key is claimed before the work; its answer is
 * recorded in the same commit as the object it tells of, so a crash leaves either both or neither.
 */
import type { Claim } from "./claim.ts";

/** From the claim of a key; also how long a client may wait before it repeats a request. */
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

/** What an `Idempotency-Key` stands for when it comes in. */
export type IdempotencyState =
  /** It is the caller's now, until the answer is recorded or the key is released. */
  | { readonly kind: "new" }
  | { readonly kind: "in_progress" }
  /** `answer` is the JSON body of the first answer. */
  | { readonly kind: "answered"; readonly fingerprint: string; readonly answer: string };

/**
 * The answer to remember, recorded in the same commit as the object it tells of, and only if the key is still
 * without one: of two requests with one key, of which the first lost its claim by being slow, the answer that
 * comes first is remembered. The object is stored either way.
 */
export interface Receipt extends IdempotentRequest {
  readonly answer: string;
}

/** Writes the receipt of what is about to be stored. */
export type ReceiptFor<Made> = (made: Made) => Receipt;

export interface IdempotencyStore {
  /**
   * Takes the key for the caller, unless it stands for something already (in the last 24 hours). A key in
   * progress may be taken over when its `ttlMs` has passed: whoever worked on it is taken for gone. A takeover
   * begins its 24 hours anew.
   */
  claimIdempotencyKey(project: string, key: string, claim: Claim): Promise<IdempotencyState>;
  /** The request came to nothing: the key is free again. Changes nothing once there is an answer. */
  releaseIdempotencyKey(project: string, key: string): Promise<void>;
  /** Drops keys older than 24 hours. */
  forgetIdempotencyKeys(nowMs: number): Promise<void>;
}
