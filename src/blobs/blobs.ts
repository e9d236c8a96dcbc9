/**
 * The port for bytes: large, streamed, never changed. A blob is there whole or not at all: `put` resolves
 * once it is durable, and a crash before that leaves nothing under its key. Keys are paths of
 * letters, digits, `-`, `_` and `.`, separated by `/`.
 */
import type { Readable } from "node:stream";

export interface BlobInfo {
  readonly key: string;
  readonly bytes: number;
  readonly modifiedAtMs: number;
}

/** Bytes `[start, end)`. */
export interface ByteRange {
  readonly start: number;
  readonly end: number;
}

export interface Blobs {
  /** Stores the bytes under a new key. When `source` fails, nothing is stored and its error is thrown on. */
  put(key: string, source: AsyncIterable<Uint8Array>): Promise<{ bytes: number }>;
  /** Stores one buffer under a new key. */
  putBytes(key: string, bytes: readonly Uint8Array[]): Promise<void>;
  /** Emits {@link BlobNotFound} when there is no such blob, {@link BlobTooShort} when it ends within the range. */
  read(key: string, range?: ByteRange): Readable;
  /** A range in one buffer. Throws {@link BlobNotFound} or {@link BlobTooShort}. */
  readRange(key: string, range: ByteRange): Promise<Buffer>;
  /** Blobs whose key starts with `prefix` (a path that ends in `/`, or empty), in no particular order. */
  list(prefix: string): AsyncIterable<BlobInfo>;
  /** Does nothing when there is no such blob. */
  delete(key: string): Promise<void>;
  /** Deletes every blob whose key starts with `prefix` (a path that ends in `/`). */
  deleteAll(prefix: string): Promise<void>;
  /** Rejects when blobs cannot be written. */
  ping(): Promise<void>;
}

export class BlobNotFound extends Error {
  override readonly name = "BlobNotFound";

  constructor(key: string, options?: ErrorOptions) {
    super(`no blob ${key}`, options);
  }
}

/** It was stored whole, so it has been damaged since. */
export class BlobTooShort extends Error {
  override readonly name = "BlobTooShort";

  constructor(key: string, endByte: number) {
    super(`blob ${key} ends before byte ${endByte}`);
  }
}
