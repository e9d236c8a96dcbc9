/**
 * The port for bytes: large, streamed, never changed. A blob must be whole or absent. `put` resolves once the blob is
 * durable, and a crash before that leaves nothing under its key. Keys are paths of letters, digits, `-`, `_` and `.`,
 * separated by `/`.
 */
import type { Readable } from "node:stream";

export interface BlobInfo {
  readonly key: string;
  readonly bytes: number;
}

/** The bytes `[start, end)`. */
export interface ByteRange {
  readonly start: number;
  readonly end: number;
}

/** A blob whose bytes become a part of another one. */
export interface BlobPart {
  readonly key: string;
  readonly bytes: number;
}

/** The headers of a download, which a link brings with it. */
export interface LinkHeaders {
  readonly contentType: string;
  readonly contentDisposition: string;
}

/** The best times to write small blobs that gather their bytes, such as segments of a journal. */
export interface WriteHints {
  /** The least time between two writes. More writes cost more than the work that a crash would repeat. */
  readonly minIntervalMs: number;
  /** A blob of this size is worth a write at once. */
  readonly fullBytes: number;
}

/** Returns the keys that no writer may still be writing, and that will never be used again. */
export type FindGarbage = (keys: readonly string[]) => Promise<readonly string[]>;

export interface Blobs {
  readonly writeHints: WriteHints;
  /** The most bytes of its source that one {@link put} holds in memory; 0 if they are too few to count. */
  readonly heldByPutBytes: number;
  /** The most reads that are worth starting before their bytes are needed; 0 where a read has no latency to hide. */
  readonly maxReadsAhead: number;
  /** Whether the storage may say for a while that a stored blob is missing, because it is on other machines. */
  readonly mayBeBehind: boolean;
  /** Stores the bytes under a new key. An error of `source` is thrown on, and nothing is stored. */
  put(key: string, source: AsyncIterable<Uint8Array>): Promise<{ bytes: number }>;
  /**
   * Stores the bytes of other blobs, in their order, under a new key. The storage copies them by itself where it can.
   * `content` yields the same bytes, checked: an error of it is thrown on, and nothing is stored.
   */
  join(
    key: string,
    parts: readonly BlobPart[],
    content: AsyncIterable<Uint8Array>,
  ): Promise<{ bytes: number }>;
  /** Stores one buffer under a new key. */
  putBytes(key: string, bytes: readonly Uint8Array[]): Promise<void>;
  /** Emits {@link BlobNotFound} for a missing blob, {@link BlobTooShort} for one that ends within the range. */
  read(key: string, range?: ByteRange): Readable;
  /** Reads a range into one buffer. Throws {@link BlobNotFound} or {@link BlobTooShort}. */
  readRange(key: string, range: ByteRange): Promise<Buffer>;
  /** Returns an address from which anyone can read the blob for a while; null if the storage gives out none. */
  linkTo(key: string, headers: LinkHeaders): Promise<string | null>;
  /** Lists the blobs whose key starts with `prefix` (a path that ends in `/`, or empty), in no particular order. */
  list(prefix: string): AsyncIterable<BlobInfo>;
  /** Deletes blobs, in one call if the storage can do that. A missing blob is no error. */
  delete(...keys: readonly string[]): Promise<void>;
  /** Deletes every blob whose key starts with `prefix` (a path that ends in `/`). */
  deleteAll(prefix: string): Promise<void>;
  /** Removes unfinished writes of dead writers, unless the adapter does so when it opens the storage. */
  removeUnfinished(findGarbage: FindGarbage): Promise<void>;
  /** Rejects when blobs cannot be written, and when blobs in a bucket cannot be read. */
  ping(): Promise<void>;
}

/** What a reader of blobs needs of the port. */
export type BlobReader = Pick<Blobs, "maxReadsAhead" | "read" | "readRange">;

const KEY = /^(?!\.)[A-Za-z0-9._-]+(?:\/(?!\.)[A-Za-z0-9._-]+)*$/;

/** What the keys of all blobs begin with. Others may have names of another kind below the same place, as in a bucket. */
export const BLOB_PREFIXES = ["files/", "parts/", "journal/", "deliveries/"] as const;

/** No part of a key begins with a dot, so an adapter may use such names for itself. */
export function assertKey(key: string): void {
  if (!KEY.test(key)) throw new Error(`not a blob key: ${key}`);
}

export function assertPrefix(prefix: string): void {
  if (!prefix.endsWith("/")) throw new Error(`not a prefix of blob keys: ${prefix}`);
  assertKey(prefix.slice(0, -1));
}

export class BlobNotFound extends Error {
  override readonly name = "BlobNotFound";
  readonly key: string;

  constructor(key: string, options?: ErrorOptions) {
    super(`no blob ${key}`, options);
    this.key = key;
  }
}

/** The error for a blob that is shorter than it was. It was stored whole, so its file is damaged. */
export class BlobTooShort extends Error {
  override readonly name = "BlobTooShort";
  readonly key: string;

  constructor(key: string, endByte: number) {
    super(`blob ${key} ends before byte ${endByte}`);
    this.key = key;
  }
}

/** The error for a storage that does not answer, is overloaded, or refuses the server. No blob is at fault, so all work waits. */
export class BlobsUnavailable extends Error {
  override readonly name = "BlobsUnavailable";
  readonly code = "BLOBS_UNAVAILABLE";
  /** Whether the operator has to correct the credentials, the bucket or the region. */
  readonly isRefusal: boolean;

  constructor(message: string, options: ErrorOptions & { readonly isRefusal: boolean }) {
    super(message, options);
    this.isRefusal = options.isRefusal;
  }
}
