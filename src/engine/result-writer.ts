/**
 * Writes one result file, row by row, and hashes it on the way.
 *
 * Rows gather before they are written, and a long row is written in pieces, because none of it may block the event
 * loop. A file that is not finished must be discarded, or its source would stay open.
 */
import { createHash } from "node:crypto";
import { once } from "node:events";
import { PassThrough } from "node:stream";
import type { FileId, StoredFile } from "../batch/batch.ts";
import type { BlobReader, Blobs } from "../blobs/blobs.ts";
import { piecesOf, timeForMore } from "../resources/time-slice.ts";
import type { RowPlace } from "./chunk-records.ts";
import { NotWritten } from "./failure.ts";

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
  #gathered: Buffer[] = [];
  #gatheredBytes = 0;

  constructor(blobs: Blobs, id: FileId) {
    this.#blobs = blobs;
    this.#id = id;
  }

  /** Returns null when there is room for more right away. */
  write(row: Buffer): Promise<void> | null {
    this.#gathered.push(row);
    this.#gatheredBytes += row.length;
    return this.#gatheredBytes < WRITE_BYTES ? null : this.#pass();
  }

  /** Writes bytes of another blob, without ever holding all of them. */
  async copy(blobs: BlobReader, { blobKey, ...range }: RowPlace): Promise<void> {
    for await (const piece of blobs.read(blobKey, range) as AsyncIterable<Buffer>) {
      await this.write(piece);
    }
  }

  async finish(describe: (blob: WrittenBlob) => StoredFile): Promise<StoredFile | null> {
    if (this.#gatheredBytes > 0) await this.#pass();
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

  async #pass(): Promise<void> {
    const rows = this.#gathered;
    this.#gathered = [];
    this.#gatheredBytes = 0;
    // A long row comes last. To copy and hash it at once would block the event loop for 70 ms with 64 MB.
    const last = rows.at(-1);
    const long = last !== undefined && last.length > WRITE_BYTES ? rows.pop() : undefined;
    if (rows.length > 0) await this.#put(Buffer.concat(rows));
    if (long === undefined) return;
    for (const piece of piecesOf(long)) {
      await timeForMore();
      await this.#put(piece);
    }
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
      // `finish` awaits the promise; a failure before that surfaces in `#pass`.
      this.#stored.catch(() => {});
      this.#stream.on("error", () => {});
    }
    return this.#stream;
  }
}

export const resultBlobKey = (id: FileId) => `files/${id}`;
