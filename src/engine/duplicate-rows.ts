/**
 * The rows of lines that were not sent because their bodies came before. Each gets the row of the first line with its body,
 * under its own number and custom id.
 *
 * Which lines these are is not stored: they are the lines of the input that the merge has no rows for. So the input is read
 * once more beside the rows of the merge. A row of the merge that may be wanted again is remembered by its place in the
 * journal, some 30 bytes; these are at most as many as the bodies that are compared. Rows that are wanted soon again are in a
 * cache, and the others are read from the journal.
 *
 * There are as many rows as the validation has counted duplicates, even when the input is damaged since. A line whose body is
 * another one by now gets a row that says so. Behind bytes that are no line, the numbers of lines mean nothing; the duplicates
 * that are left then get rows without a custom id.
 */
import type { Batch, StopReason } from "../batch/batch.ts";
import { EqualBodies } from "../batch/equal-bodies.ts";
import { BATCH_CANCELLED, BATCH_EXPIRED, noAnswerLine, rowFor } from "../batch/outcome.ts";
import { LineSplitter, type SplitLine } from "../batch/split.ts";
import type { Blobs } from "../blobs/blobs.ts";
import { timeForMore } from "../resources/time-slice.ts";
import type { SourceStore } from "../store/sources.ts";
import { ANSWER_LOST, unreadableLine } from "./failure.ts";
import type { Row } from "./merge.ts";
import { numbersInSource } from "./merged-lines.ts";
import { parsedLine } from "./parsed-line.ts";
import { isLost } from "./segment.ts";

interface DuplicateRowsDeps {
  readonly store: Pick<SourceStore, "findMergedResults">;
  readonly blobs: Blobs;
  readonly inputBlobKey: string;
  /** Whether an error that might pass counts as damage. */
  readonly isLastTry: boolean;
}

/** A line of the input. */
interface InputLine {
  readonly number: number;
  /** Null when it cannot be read any more. */
  readonly customId: Buffer | null;
  /** The number of the first line with its body; null for the first one. */
  readonly first: number | null;
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
  deps: DuplicateRowsDeps,
): AsyncGenerator<readonly Row[]> {
  if ((batch.deduplicated?.lineCount ?? 0) === 0) {
    yield* rows;
    return;
  }
  const duplicates = new DuplicateRows(batch, deps);
  try {
    for await (const group of rows) {
      let merged: Row[] = [];
      for (const row of group) {
        if (!duplicates.isNext(row.lineNumber)) {
          yield merged;
          merged = [];
          yield* duplicates.before(row.lineNumber);
        }
        duplicates.pass(row);
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
  readonly #lines: InputLines;
  readonly #rows: RememberedRows;
  /** The duplicates that have no row yet. */
  #leftCount: number;
  /** The number of the last line that has its row. */
  #last = 0;

  constructor(batch: Batch, deps: DuplicateRowsDeps) {
    this.#stopReason = batch.stopReason;
    this.#leftCount = batch.deduplicated?.lineCount ?? 0;
    this.#lines = new InputLines(linesOf(batch, this.#bodies, deps), deps);
    this.#rows = new RememberedRows(deps.blobs);
  }

  /** Whether no duplicate comes before the row of this line, as far as that is known. */
  isNext(number: number): boolean {
    return this.#leftCount === 0 || this.#lines.head?.number === number;
  }

  /** Notes a row of the merge. All lines up to it were read before. */
  pass(row: Row): void {
    this.#last = row.lineNumber;
    if (this.#lines.head?.number === row.lineNumber) this.#lines.take();
    if (this.#leftCount > 0 && this.#bodies.mayRepeat(row.lineNumber)) this.#rows.add(row);
  }

  /** Yields the rows of the duplicates before a line, in small groups. */
  async *before(number: number): AsyncGenerator<readonly Row[]> {
    for (;;) {
      const found: InputLine[] = [];
      while (found.length < MAX_READS) {
        const line = this.#leftCount === 0 ? null : await this.#nextBefore(number);
        if (line === null) break;
        this.#leftCount--;
        this.#last = line.number;
        found.push(line);
      }
      if (found.length === 0) return;
      yield await Promise.all(found.map((line) => this.#rowOf(line)));
    }
  }

  /** Finds the next line without a row of the merge. Where none can be read any more, each missing number is one. */
  async #nextBefore(number: number): Promise<InputLine | null> {
    await this.#lines.fill();
    const { head } = this.#lines;
    if (head === null) {
      const missing = this.#last + 1;
      return missing < number ? { number: missing, customId: null, first: null } : null;
    }
    if (head.number >= number) return null;
    this.#lines.take();
    return head;
  }

  async #rowOf({ number: lineNumber, customId, first }: InputLine): Promise<Row> {
    const line = { lineNumber, customId };
    if (customId === null || first === null) {
      const bytes = noAnswerLine(line, unreadableLine(lineNumber));
      return { lineNumber, kind: "failed", bytes, isDuplicate: true };
    }
    const found = await this.#rows.find(first);
    if (found !== null && found !== LOST) {
      const bytes = rowFor({ lineNumber, customId }, found.bytes);
      return { lineNumber, kind: found.kind, bytes, isDuplicate: true };
    }
    const isAnswerLost = found === LOST || this.#stopReason === null;
    const stopped = this.#stopReason === "cancelled" ? BATCH_CANCELLED : BATCH_EXPIRED;
    const bytes = noAnswerLine(line, isAnswerLost ? ANSWER_LOST : stopped);
    return { lineNumber, kind: isAnswerLost ? "failed" : "not_run", bytes, isDuplicate: true };
  }

  async close(): Promise<void> {
    await this.#lines.close();
  }
}

/** The lines of the input, up to the end of what can be read of it. */
class InputLines {
  readonly #deps: DuplicateRowsDeps;
  readonly #groups: AsyncGenerator<readonly InputLine[]>;
  #group: readonly InputLine[] = [];
  #at = 0;

  constructor(groups: AsyncGenerator<readonly InputLine[]>, deps: DuplicateRowsDeps) {
    this.#groups = groups;
    this.#deps = deps;
  }

  /** The next line; null at the end, and before {@link fill}. */
  get head(): InputLine | null {
    return this.#group[this.#at] ?? null;
  }

  take(): void {
    this.#at++;
  }

  /** Reads on when all lines that were read are taken. */
  async fill(): Promise<void> {
    while (this.head === null) {
      const next = await this.#next();
      if (next === null) return;
      this.#group = next;
      this.#at = 0;
    }
  }

  async #next(): Promise<readonly InputLine[] | null> {
    const { blobs, isLastTry } = this.#deps;
    try {
      const next = await this.#groups.next();
      return next.done === true ? null : next.value;
    } catch (error) {
      if (!(await isLost(error, blobs)) && !isLastTry) throw error;
      return null;
    }
  }

  async close(): Promise<void> {
    await this.#groups.return(undefined);
  }
}

/**
 * Yields the lines of the input in order, with the numbers that they have in the results, up to the first bytes that are no line
 * any more.
 */
async function* linesOf(
  batch: Batch,
  bodies: EqualBodies,
  deps: DuplicateRowsDeps,
): AsyncGenerator<readonly InputLine[]> {
  const numbers = batch.source?.merge == null ? null : numbersInSource(batch, deps);
  const splitter = new LineSplitter(NO_LIMIT, { start: 0, firstLine: 1 });
  const read = async ({ bytes, number: ownNumber }: SplitLine): Promise<InputLine | null> => {
    const next = await numbers?.next();
    const parsed = bytes === null ? null : await parsedLine(bytes);
    if (bytes === null || !parsed?.body || parsed.customId === null || next?.done) return null;
    const number = next === undefined ? ownNumber : next.value;
    const { start, end } = parsed.customId;
    const first = bodies.firstWith(bytes, parsed.body, number);
    return { number, first, customId: bytes.subarray(start, end) };
  };
  const pieces = async function* () {
    for await (const piece of deps.blobs.read(deps.inputBlobKey)) {
      yield splitter.push(piece as Buffer);
    }
    yield splitter.end();
  };
  try {
    for await (const lines of pieces()) {
      const group: InputLine[] = [];
      for (const each of lines) {
        const line = await read(each);
        if (line !== null) group.push(line);
        else {
          yield group;
          return;
        }
        const pause = timeForMore();
        if (pause !== null) await pause;
      }
      yield group;
    }
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
