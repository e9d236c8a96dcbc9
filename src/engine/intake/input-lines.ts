/**
 * Reads the lines of an input from its first to its last, in order, as a stream: to count them for a sample, and to check
 * them. Memory holds one piece of the file and the longest line, and other work has its turns in between.
 */
import type { Batch, StoredFile } from "../../batch/batch.ts";
import { EqualBodies } from "../../batch/equal-bodies.ts";
import type { ParsedLine } from "../../batch/line.ts";
import { spreadOver } from "../../batch/plan.ts";
import type { BlobReader } from "../../blobs/blobs.ts";
import type { MemoryBudget, Room } from "../../resources/memory-budget.ts";
import { SlicedWork } from "../../resources/time-slice.ts";
import type { Store } from "../../store/store.ts";
import { LineSplitter, type SplitLine } from "../../text/split.ts";
import { parsedLine } from "../chunks/parsed-line.ts";
import { numbersInSource } from "../results/merged-lines.ts";
import { firstWithBody } from "../results/repeated-lines.ts";
import type { InputReading } from "./input-reading.ts";

/** The fixed cost of a line besides its bytes, however short it is. */
const LINE_COST_BYTES = 256;

/** The lines of one input, and what reads them. */
interface InputLines {
  readonly input: StoredFile;
  readonly project: string;
  readonly maxLineBytes: number;
  readonly stop: AbortSignal;
  readonly deps: {
    readonly blobs: BlobReader;
    readonly memory: MemoryBudget;
    readonly store: Store;
  };
}

/**
 * Chooses the lines of a sample, spread over those that are sent, by their places among these. They are known only when
 * the lines have been counted, so the file of such a batch is read once more.
 */
export async function sampledLines(
  { sample, deduplicated }: Pick<Batch, "sample" | "deduplicated">,
  lines: InputLines,
): Promise<((place: number) => boolean) | null> {
  if (sample === null) return null;
  const count = new BodyCount(deduplicated === null ? null : new EqualBodies());
  await readLines(lines, (line) => count.add(line));
  return count.total > sample ? spreadOver(count.total, sample) : null;
}

/**
 * Counts lines, equal bodies once where they are compared, as the validation plans them. A line without a body fails its
 * batch, so it may count as one.
 */
class BodyCount {
  readonly #bodies: EqualBodies | null;
  total = 0;

  constructor(bodies: EqualBodies | null) {
    this.#bodies = bodies;
  }

  add({ bytes, number }: SplitLine): Promise<void> | null {
    const bodies = this.#bodies;
    if (bytes === null || bodies === null) return this.#count(null);
    const firstOf = (parsed: ParsedLine | null) => {
      const body = parsed?.body ?? null;
      return body && firstWithBody(bodies, bytes.subarray(body.start, body.end), number);
    };
    const parsed = parsedLine(bytes);
    const first = parsed instanceof Promise ? parsed.then(firstOf) : firstOf(parsed);
    return first instanceof Promise ? first.then((at) => void this.#count(at)) : this.#count(first);
  }

  /** Counts a line unless there is an earlier one with its body. */
  #count(first: number | null): null {
    if (first === null) this.total++;
    return null;
  }
}

/** Gives the lines of a merged batch the numbers that they have in its source. */
export async function readNumbered(
  batch: Batch,
  lines: InputLines,
  reading: InputReading,
): Promise<boolean> {
  const numbers = numbersInSource(batch, lines.deps);
  try {
    return await readLines(lines, async (line) => {
      const next = await numbers.next();
      if (next.done === true) throw new Error("the source has fewer lines than were taken from it");
      await reading.add(line, next.value - line.number);
    });
  } finally {
    await numbers.return(undefined);
  }
}

/** Gives every line to `add`, in order. Resolves to whether all were read: false when `stop` ended it. */
export async function readLines(
  { input, project, maxLineBytes, stop, deps: { blobs, memory } }: InputLines,
  add: (line: SplitLine) => Promise<void> | null,
): Promise<boolean> {
  const splitter = new LineSplitter(maxLineBytes, { start: 0, firstLine: 1 });
  using room = memory.open("lines", project);
  const work = new SlicedWork();
  const addAll = async (lines: Iterable<SplitLine>) => {
    for (const line of lines) {
      const added = add(line);
      if (added !== null) await added;
      const wait = work.done(line.end - line.start + LINE_COST_BYTES);
      if (wait !== null) await wait;
    }
  };
  // The range turns a blob that has become shorter into a fault of its own.
  for await (const bytes of blobs.read(input.blobKey, { start: 0, end: input.bytes })) {
    if (stop.aborted) return false;
    await addAll(splitter.push(bytes as Buffer));
    await work.done((bytes as Buffer).length);
    await holdIn(room, splitter.heldBytes);
  }
  await addAll(splitter.end());
  return true;
}

/** Counts a long line by the bytes that have come so far. */
async function holdIn(room: Room, bytes: number): Promise<void> {
  if (bytes < room.bytes) room.release();
  if (bytes > room.bytes) await room.add(bytes - room.bytes);
}
