/**
 * Walks over the lines of an input, forward. It jumps over lines where the marks allow it, and finds a long line by its place
 * first, so that its reader can make room for it.
 */
import type { LineMark, StoredFile } from "../../batch/batch.ts";
import type { BlobReader } from "../../blobs/blobs.ts";
import type { SplitLine } from "../../text/split.ts";
import { FIRST_MARK, linesOfFile } from "../chunks/chunk-input.ts";
import { MAX_PASSED_ROW_BYTES } from "./finished-lines.ts";

const NEWLINE = 0x0a;

export class InputWalk implements AsyncDisposable {
  readonly #file: StoredFile;
  readonly #marks: readonly LineMark[];
  readonly #blobs: BlobReader;
  #lines: AsyncGenerator<SplitLine> | null = null;
  #current: SplitLine | null = null;
  #readBytes = 0;

  constructor(file: StoredFile, marks: readonly LineMark[], blobs: BlobReader) {
    this.#file = file;
    this.#marks = marks;
    this.#blobs = blobs;
  }

  /** Finds the line `number`, or the next one that is not blank; null at the end. */
  async findFrom(number: number): Promise<SplitLine | null> {
    if (this.#current !== null && this.#current.number >= number) return this.#current;
    const mark = this.#marks.findLast(([marked]) => marked <= number) ?? FIRST_MARK;
    if (this.#lines === null || mark[0] > (this.#current?.number ?? 0)) {
      await this.#lines?.return(undefined);
      const from = { mark, maxLineBytes: MAX_PASSED_ROW_BYTES };
      this.#lines = linesOfFile(this.#file, this.#blobs, from);
    }
    for (;;) {
      const next = await this.#lines.next();
      if (next.done === true) return null;
      this.#current = next.value;
      this.#readBytes += next.value.end - next.value.start;
      if (next.value.number >= number) return next.value;
    }
  }

  /** Returns the bytes of a line without its newline. */
  async bytesOf({ bytes, start, end }: SplitLine): Promise<Buffer> {
    if (bytes !== null) return bytes;
    const read = await this.#blobs.readRange(this.#file.blobKey, { start, end });
    return read.at(-1) === NEWLINE ? read.subarray(0, -1) : read;
  }

  /** Returns the bytes that were read since the last call. */
  takeReadBytes(): number {
    const bytes = this.#readBytes;
    this.#readBytes = 0;
    return bytes;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#lines?.return(undefined);
  }
}
