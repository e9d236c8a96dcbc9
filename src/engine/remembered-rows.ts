/**
 * The rows of a merge that may be wanted again, by the numbers of their lines. A line that was not sent gets the row of the
 * first line with its body, which comes long before it. So each such row is remembered by its place in the journal, some 30
 * bytes, and the rows that came last are in a cache as well. A row is never held for longer than the cache has room: the
 * others are read from the journal again.
 */
import { firstPlace } from "../batch/binary-search.ts";
import type { BlobReader } from "../blobs/blobs.ts";
import type { Row } from "./chunk-records.ts";

const MAX_CACHED_BYTES = 16 * 1024 * 1024;
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
  readonly #cache = new Map<number, Buffer>();
  #cachedBytes = 0;

  constructor(blobs: BlobReader) {
    this.#blobs = blobs;
  }

  /** Lines that never ran are not remembered. */
  add({ lineNumber, kind, bytes, place }: Row): void {
    if (kind === "not_run") return;
    if (this.#count === this.#numbers.length) this.#grow();
    const at = this.#count++;
    this.#numbers[at] = lineNumber;
    this.#isCompleted[at] = kind === "completed" ? 1 : 0;
    if (place === undefined) {
      this.#places[3 * at] = NO_BLOB;
      return;
    }
    this.#places.set([this.#indexOf(place.blobKey), place.start, place.end], 3 * at);
    this.#keep(lineNumber, bytes);
  }

  async find(number: number): Promise<Pick<Row, "kind" | "bytes"> | typeof LOST | null> {
    const at = this.#find(number);
    if (at === null) return null;
    if (this.#places[3 * at] === NO_BLOB) return LOST;
    const kind = this.#isCompleted[at] === 1 ? "completed" : "failed";
    const kept = this.#cache.get(number);
    if (kept !== undefined) return { kind, bytes: kept };
    const [index = 0, start = 0, end = 0] = this.#places.subarray(3 * at, 3 * at + 3);
    const bytes = await this.#blobs.readRange(this.#keys[index] ?? "", { start, end });
    this.#keep(number, bytes);
    return { kind, bytes };
  }

  /** Keeps the rows that came last. */
  #keep(number: number, bytes: Buffer): void {
    if (bytes.length > MAX_CACHED_BYTES / 16) return;
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
