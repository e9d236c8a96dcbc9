/**
 * The rows of a merge that may be wanted again, by the numbers of their lines. A line that was not sent gets the row of the
 * first line with its body, which comes long before it. So each such row is remembered by its place in the journal, some 40
 * bytes, and the rows that came last are in a cache as well. A row is never held for longer than the cache has room: the
 * others are read from the journal again, a long one only in part.
 */
import type { AnswerNames } from "../../batch/batch.ts";
import { firstPlace } from "../../batch/binary-search.ts";
import { ROW_HEAD_BYTES } from "../../batch/row-failure.ts";
import type { BlobReader } from "../../blobs/blobs.ts";
import type { Row } from "./chunk-records.ts";

const MAX_CACHED_BYTES = 16 * 1024 * 1024;
/** A longer row is left in the journal: some are found at the same time, and each may have 64 MB. */
const MAX_READ_BYTES = 1024 * 1024;
const FIRST_ROOM = 1024;
/** What is found of a line that had an answer, which cannot be read any more. */
export const LOST = "lost";
/** Stands for the blob of such a line. */
const NO_BLOB = -1;

/** Rows are added in the order of their lines. */
export class RememberedRows {
  readonly #blobs: BlobReader;
  readonly #keys: string[] = [];
  readonly #indexes = new Map<string, number>();
  #count = 0;
  #numbers = new Uint32Array(FIRST_ROOM);
  /** The blob, the start and the end of each row, and whether it is in the output file. */
  #places = new Float64Array(3 * FIRST_ROOM);
  #isCompleted = new Uint8Array(FIRST_ROOM);
  /** The names in the journal. Most rows have the same object. */
  readonly #names: (AnswerNames | null)[] = [];
  readonly #cache = new Map<number, Buffer>();
  #cachedBytes = 0;

  constructor(blobs: BlobReader) {
    this.#blobs = blobs;
  }

  /** Lines that never ran are not remembered. */
  add({ lineNumber, kind, bytes, place, names = null, rest }: Row): void {
    if (kind === "not_run") return;
    if (this.#count === this.#numbers.length) this.#grow();
    const at = this.#count++;
    this.#numbers[at] = lineNumber;
    this.#isCompleted[at] = kind === "completed" ? 1 : 0;
    this.#names.push(names);
    if (place === undefined) {
      this.#places[3 * at] = NO_BLOB;
      return;
    }
    this.#places.set([this.#indexOf(place.blobKey), place.start, place.end], 3 * at);
    if (rest === undefined) this.#keep(lineNumber, bytes);
  }

  /** Finds the row of a line: the beginning of a long one, and the place of the rest. */
  async find(number: number): Promise<Omit<Row, "lineNumber"> | typeof LOST | null> {
    const at = this.#find(number);
    if (at === null) return null;
    if (this.#places[3 * at] === NO_BLOB) return LOST;
    const kind = this.#isCompleted[at] === 1 ? "completed" : "failed";
    const names = this.#names[at] ?? null;
    const kept = this.#cache.get(number);
    if (kept !== undefined) return { kind, names, bytes: kept };
    const [index = 0, start = 0, end = 0] = this.#places.subarray(3 * at, 3 * at + 3);
    const blobKey = this.#keys[index] ?? "";
    const readEnd = end - start > MAX_READ_BYTES ? start + ROW_HEAD_BYTES : end;
    const bytes = await this.#blobs.readRange(blobKey, { start, end: readEnd });
    if (readEnd < end) return { kind, names, bytes, rest: { blobKey, start: readEnd, end } };
    this.#keep(number, bytes);
    return { kind, names, bytes };
  }

  /** Keeps the rows that came last. */
  #keep(number: number, bytes: Buffer): void {
    // Equal lines are often looked for at the same time.
    if (bytes.length > MAX_READ_BYTES || this.#cache.has(number)) return;
    // A row is often a part of a segment, which would stay in memory as a whole.
    this.#cache.set(number, Buffer.from(bytes));
    this.#cachedBytes += bytes.length;
    for (const [oldest, { length }] of this.#cache) {
      if (this.#cachedBytes <= MAX_CACHED_BYTES) return;
      this.#cache.delete(oldest);
      this.#cachedBytes -= length;
    }
  }

  #find(number: number): number | null {
    const at = firstPlace(this.#count, (place) => (this.#numbers[place] as number) >= number);
    return at < this.#count && this.#numbers[at] === number ? at : null;
  }

  #indexOf(blobKey: string): number {
    const known = this.#indexes.get(blobKey);
    if (known !== undefined) return known;
    this.#indexes.set(blobKey, this.#keys.length);
    return this.#keys.push(blobKey) - 1;
  }

  #grow(): void {
    const room = 2 * this.#numbers.length;
    const numbers = new Uint32Array(room);
    numbers.set(this.#numbers);
    const places = new Float64Array(3 * room);
    places.set(this.#places);
    const isCompleted = new Uint8Array(room);
    isCompleted.set(this.#isCompleted);
    [this.#numbers, this.#places, this.#isCompleted] = [numbers, places, isCompleted];
  }
}
