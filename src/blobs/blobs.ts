/**
 * The port for bytes: large, streamed, never changed. A blob must be whole or absent. `put` resolves once the blob is
 * durable, and a crash before that leaves nothing under its key. Keys are paths of letters, digits, `-`, `_` and `.`,
 * separated by `/`.
 */
import type { Readable } from "node:stream";

export interface BlobInfo {
  readonly key: string;
  readonly bytes: number;
  readonly modifiedAtMs: number;
}

/** The bytes `[start, end)`. */
export interface ByteRange {
  readonly start: number;
  readonly end: number;
}

export interface Blobs {
  /** Stores the bytes under a new key. An error of `source` is thrown on, and nothing is stored. */
  put(key: string, source: AsyncIterable<Uint8Array>): Promise<{ bytes: number }>;
  /** Stores one buffer under a new key. */
  putBytes(key: string, bytes: readonly Uint8Array[]): Promise<void>;
  /** Emits {@link BlobNotFound} for a missing blob, {@link BlobTooShort} for one that ends within the range. */
  read(key: string, range?: ByteRange): Readable;
  /** Reads a range into one buffer. Throws {@link BlobNotFound} or {@link BlobTooShort}. */
  readRange(key: string, range: ByteRange): Promise<Buffer>;
  /** Lists the blobs whose key starts with `prefix` (a path that ends in `/`, or empty), in no particular order. */
  list(prefix: string): AsyncIterable<BlobInfo>;
  /** Deletes a blob. A missing blob is no error. */
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

/** The error for a blob that is shorter than it was. It was stored whole, so its file is damaged. */
export class BlobTooShort extends Error {
  override readonly name = "BlobTooShort";

  constructor(key: string, endByte: number) {
    super(`blob ${key} ends before byte ${endByte}`);
  }
}
