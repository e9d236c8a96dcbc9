/**
 * Writes one result file, row by row, and hashes it on the way.
 *
 * Rows gather before they are written, and a long row is written in pieces, because none of it may block the event
 * loop. A file that is not finished must be discarded, or its source would stay open.
 */
import { createHash } from "node:crypto";
import { once } from "node:events";
import { PassThrough } from "node:stream";
import type { FileId, StoredFile } from "../../batch/batch.ts";
import type { BlobReader, Blobs } from "../../blobs/blobs.ts";
import { piecesOf, timeForMore } from "../../resources/time-slice.ts";
import { Gathered } from "../../text/gathered.ts";
import { NotWritten } from "../steps/failure.ts";
import type { RowPlace } from "./chunk-records.ts";

export interface WrittenBlob {
  readonly id: FileId;
  readonly blobKey: string;
  readonly bytes: number;
  readonly sha256: string;
}

/** Rows gather to this size before they are written: small writes cost more than the copy. */
const WRITE_BYTES = 256 * 1024;

/** The writer of one result blob. It begins with the first row, so that an empty file is never made. */
export class ResultWriter {
  readonly #blobs: Blobs;
  readonly #id: FileId;
  readonly #hash = createHash("sha256");
  #stream: PassThrough | null = null;
  #stored: Promise<{ bytes: number }> | null = null;
  /**
   * Copies all rows but the first. A row is often a part of a segment, which stays in memory as a whole, and failed rows may come
   * from all segments.
   */
  readonly #gathered = new Gathered(WRITE_BYTES);

  constructor(blobs: Blobs, id: FileId) {
    this.#blobs = blobs;
    this.#id = id;
  }

  /** Returns null when there is room for more right away. */
  write(row: Buffer): Promise<void> | null {
    if (this.#gathered.length + row.length > WRITE_BYTES) return this.#pass(row);
    this.#gathered.add(row);
    return null;
  }

  /** Writes bytes of another blob, without ever holding all of them. */
  async copy(blobs: BlobReader, { blobKey, ...range }: RowPlace): Promise<void> {
    for await (const piece of blobs.read(blobKey, range) as AsyncIterable<Buffer>) {
      await this.write(piece);
    }
  }

  async finish(describe: (blob: WrittenBlob) => StoredFile): Promise<StoredFile | null> {
    await this.#putGathered();
    if (this.#stream === null || this.#stored === null) return null;
    this.#stream.end();
    const { bytes } = await this.#stored;
    const blobKey = resultBlobKey(this.#id);
    return describe({ id: this.#id, blobKey, bytes, sha256: this.#hash.digest("hex") });
  }

  /** Stops writing; a finished blob is removed with its intent. */
  async discard(): Promise<void> {
    this.#stream?.destroy(new Error("discarded"));
    await this.#stored?.catch(() => {});
  }

  /** Writes what has gathered, and the row unless it is short. */
  async #pass(row: Buffer): Promise<void> {
    await this.#putGathered();
    if (row.length <= WRITE_BYTES) return this.#gathered.add(row);
    // To copy and hash it at once would block the event loop for 70 ms with 64 MB.
    for (const piece of piecesOf(row)) {
      await timeForMore();
      await this.#put(piece);
    }
  }

  async #putGathered(): Promise<void> {
    if (this.#gathered.length > 0) await this.#put(this.#gathered.take());
  }

  async #put(bytes: Buffer): Promise<void> {
    this.#hash.update(bytes);
    const stream = this.#open();
    if (stream.write(bytes)) return;
    // The stream ends with an error of its own when it is not read to its end. The store knows why.
    const drained = once(stream, "drain").catch(() => this.#stored);
    await Promise.race([drained, this.#stored]);
  }

  #open(): PassThrough {
    if (this.#stream === null) {
      this.#stream = new PassThrough({ highWaterMark: 4 * WRITE_BYTES });
      const stored = this.#blobs.put(resultBlobKey(this.#id), this.#stream);
      this.#stored = stored.catch((cause: unknown) => {
        throw new NotWritten("a result file could not be written", { cause });
      });
      // `finish` awaits the promise; a failure before that surfaces in `#put`.
      this.#stored.catch(() => {});
      this.#stream.on("error", () => {});
    }
    return this.#stream;
  }
}

export const resultBlobKey = (id: FileId) => `files/${id}`;
