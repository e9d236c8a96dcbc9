/**
 * The rows of lines that were not sent because their bodies came before. Each gets the row of the first line with its body,
 * under its own number and custom id.
 *
 * Which lines these are is not stored: the input says it, and is read once more beside the rows of the merge. A row of the
 * merge that may be wanted again is remembered by its place in the journal, some 30 bytes; these are at most as many as the
 * bodies that are compared. Rows that are wanted soon again are in a cache, and the others are read from the journal.
 */
import type { Batch, StopReason, StoredFile } from "../batch/batch.ts";
import { EqualBodies } from "../batch/equal-bodies.ts";
import { BATCH_CANCELLED, BATCH_EXPIRED, noAnswerLine, rowFor } from "../batch/outcome.ts";
import { LineSplitter } from "../batch/split.ts";
import type { Blobs } from "../blobs/blobs.ts";
import { timeForMore } from "../resources/time-slice.ts";
import type { SourceStore } from "../store/sources.ts";
import { ANSWER_LOST } from "./failure.ts";
import type { Row } from "./merge.ts";
import { numbersInSource } from "./merged-lines.ts";
import { parsedLine } from "./parsed-line.ts";

interface DuplicateRowsDeps {
  readonly store: Pick<SourceStore, "findMergedResults">;
  readonly blobs: Blobs;
}

/** A line that was not sent. */
interface Duplicate {
  readonly number: number;
  readonly customId: Buffer;
  /** The number of the first line with its body. */
  readonly first: number;
}

/** The lines of the input were checked when the batch was validated. */
const NO_LIMIT = Number.MAX_SAFE_INTEGER;
const MAX_CACHED_BYTES = 16 * 1024 * 1024;
/** Rows that are read from the journal at the same time. */
const MAX_READS = 16;

/** Puts the rows of duplicates between the rows of a merge, in the order of the lines. */
export async function* withDuplicates(
  rows: AsyncGenerator<readonly Row[]>,
  batch: Batch,
  { input, ...deps }: DuplicateRowsDeps & { readonly input: StoredFile | null },
): AsyncGenerator<readonly Row[]> {
  if (input === null || (batch.deduplicated?.lineCount ?? 0) === 0) {
    yield* rows;
    return;
  }
  const duplicates = new DuplicateRows(batch, { ...deps, input });
  try {
    await duplicates.fill();
    for await (const group of rows) {
      let merged: Row[] = [];
      for (const row of group) {
        if (duplicates.nextNumber < row.lineNumber) {
          yield merged;
          merged = [];
          yield* duplicates.before(row.lineNumber);
        }
        duplicates.remember(row);
        merged.push(row);
      }
      yield merged;
    }
    yield* duplicates.before(Number.POSITIVE_INFINITY);
  } finally {
    await duplicates.close();
  }
}

class DuplicateRows {
  readonly #stopReason: StopReason | null;
  readonly #bodies = new EqualBodies();
  readonly #lines: AsyncGenerator<Duplicate>;
  readonly #rows: RememberedRows;
  #next: Duplicate | null = null;

  constructor(batch: Batch, deps: DuplicateRowsDeps & { readonly input: StoredFile }) {
    this.#stopReason = batch.stopReason;
    this.#lines = duplicatesIn(batch, { ...deps, bodies: this.#bodies });
    this.#rows = new RememberedRows(deps.blobs);
  }

  /** All lines up to the row were read before. */
  remember(row: Row): void {
    if (this.#bodies.mayRepeat(row.lineNumber)) this.#rows.add(row);
  }

  /** The number of the next duplicate, once it was read. */
  get nextNumber(): number {
    return this.#next?.number ?? Number.POSITIVE_INFINITY;
  }

  /** Reads the next duplicate. */
  async fill(): Promise<void> {
    const next = await this.#lines.next();
    this.#next = next.done === true ? null : next.value;
  }

  /** Yields the rows of the duplicates before a line, in small groups. */
  async *before(number: number): AsyncGenerator<readonly Row[]> {
    while (this.nextNumber < number) {
      const found: Duplicate[] = [];
      while (this.#next !== null && this.#next.number < number && found.length < MAX_READS) {
        found.push(this.#next);
        await this.fill();
      }
      yield await Promise.all(found.map((duplicate) => this.#rowOf(duplicate)));
    }
  }

  async #rowOf({ number: lineNumber, customId, first }: Duplicate): Promise<Row> {
    const line = { lineNumber, customId };
    const found = await this.#rows.find(first);
    if (found !== null && found !== LOST) {
      const bytes = rowFor(line, found.bytes);
      return { lineNumber, kind: found.kind, bytes, isDuplicate: true };
    }
    const isLost = found === LOST || this.#stopReason === null;
    const stopped = this.#stopReason === "cancelled" ? BATCH_CANCELLED : BATCH_EXPIRED;
    const bytes = noAnswerLine(line, isLost ? ANSWER_LOST : stopped);
    return { lineNumber, kind: isLost ? "failed" : "not_run", bytes, isDuplicate: true };
  }

  async close(): Promise<void> {
    await this.#lines.return(undefined);
  }
}

/** Yields the lines that were not sent, in order, with the numbers that they have in the results. */
async function* duplicatesIn(
  batch: Batch,
  {
    input,
    bodies,
    ...deps
  }: DuplicateRowsDeps & { readonly input: StoredFile; readonly bodies: EqualBodies },
): AsyncGenerator<Duplicate> {
  const numbers = batch.source?.merge == null ? null : numbersInSource(batch, deps);
  const splitter = new LineSplitter(NO_LIMIT, { start: 0, firstLine: 1 });
  async function* duplicatesOf(lines: ReturnType<LineSplitter["push"]>) {
    for (const { bytes, number: ownNumber } of lines) {
      const next = await numbers?.next();
      const number = next === undefined || next.done === true ? ownNumber : next.value;
      const parsed = bytes === null ? null : await parsedLine(bytes);
      if (bytes === null || !parsed?.body || parsed.customId === null) continue;
      const first = bodies.firstWith(bytes, parsed.body, number);
      const { start, end } = parsed.customId;
      if (first !== null) yield { number, first, customId: bytes.subarray(start, end) };
      const pause = timeForMore();
      if (pause !== null) await pause;
    }
  }
  try {
    for await (const piece of deps.blobs.read(input.blobKey) as AsyncIterable<Buffer>) {
      yield* duplicatesOf(splitter.push(piece));
    }
    yield* duplicatesOf(splitter.end());
  } finally {
    await numbers?.return(undefined);
  }
}

const FIRST_ROOM = 1024;
/** What is found of a line that had an answer, which cannot be read any more. */
const LOST = "lost";
/** Stands for the blob of such a line. */
const NO_BLOB = -1;

/** The rows of a merge, which come in order, by the numbers of their lines. */
class RememberedRows {
  readonly #blobs: Blobs;
  readonly #keys: string[] = [];
  readonly #indexes = new Map<string, number>();
  #count = 0;
  #numbers = new Uint32Array(FIRST_ROOM);
  /** The blob, the start and the end of each row, and whether it is in the output file. */
  #places = new Float64Array(3 * FIRST_ROOM);
  #isCompleted = new Uint8Array(FIRST_ROOM);
  readonly #cache = new Map<number, Buffer>();
  #cachedBytes = 0;

  constructor(blobs: Blobs) {
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
    let [low, high] = [0, this.#count];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if ((this.#numbers[middle] as number) < number) low = middle + 1;
      else high = middle;
    }
    return low < this.#count && this.#numbers[low] === number ? low : null;
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
