/**
 * The text of a key that was made at run time: `sk-batchd-`, the digits of its id, and 256 random bits. With the id in it,
 * one key is found and compared, however many there are. The beginning lets scanners of code find keys that were published.
 */
import { createHash, randomBytes } from "node:crypto";
import { randomHexId } from "../batch/random-id.ts";
import type { KeyId } from "../store/keys.ts";

const SECRET_BYTES = 32;
const KEY = /^sk-batchd-([0-9a-f]{32})-[A-Za-z0-9_-]{43}$/;

export const sha256 = (text: string): Buffer => createHash("sha256").update(text).digest();

/** Makes a key. Its text is nowhere else, and only the caller of this function ever has it. */
export function newKeyText(): { readonly id: KeyId; readonly text: string } {
  const digits = randomHexId();
  const secret = randomBytes(SECRET_BYTES).toString("base64url");
  return { id: `key_${digits}` as KeyId, text: `sk-batchd-${digits}-${secret}` };
}

/** Returns the id in the text of a key; null for a key of another form. */
export function keyIdIn(text: string): KeyId | null {
  const digits = KEY.exec(text)?.[1];
  return digits === undefined ? null : (`key_${digits}` as KeyId);
}
