/**
 * Reads lines of an input: those of a chunk, or all of them as a stream.
 *
 * Where a file mixes models, a chunk is made of many short extents with the lines of other chunks between them.
 * Extents that lie close together are read as one, because a read costs more than the bytes between them. Only copies
 * of the extents are kept, since a line holds its bytes until it is answered.
 */
import type { Chunk, InputExtent, LineMark, StoredFile } from "../../batch/batch.ts";
import type { BlobReader } from "../../blobs/blobs.ts";
import { Semaphore } from "../../resources/semaphore.ts";
import { timeForMore } from "../../resources/time-slice.ts";
import { LineSplitter, type SplitLine } from "../../text/split.ts";
import { isLost } from "../journal/segment.ts";
import { parsedLine } from "./parsed-line.ts";

/** A gap up to this size is read and skipped, which costs less than a second read. */
const MAX_GAP_BYTES = 64 * 1024;
/** The limit of one read, with the gaps between its extents. */
const MAX_READ_BYTES = 4 * 1024 * 1024;

/** Yields the lines of each extent, in order. Throws when a read fails. */
export async function* linesOfExtents(
  { blobs, key }: { readonly blobs: BlobReader; readonly key: string },
  extents: readonly InputExtent[],
): AsyncGenerator<Iterable<SplitLine>> {
  for (const group of groupsOf(extents)) {
    const owns = await readGroup({ blobs, key }, group);
    for (const [i, extent] of group.entries()) yield linesOf(owns[i] ?? NOTHING, extent);
  }
}

const NOTHING = Buffer.alloc(0);
/** The reads with gaps at once: a batch with hundreds of models opens as many chunks in a moment. The others wait. */
const wideReads = new Semaphore(8);

/**
 * Reads the bytes of each extent. All of them are copied at once: while the lines of the first wait for their slots, the bytes
 * between them would stay in memory, for each chunk that is open.
 */
async function readGroup(
  { blobs, key }: { readonly blobs: BlobReader; readonly key: string },
  group: readonly InputExtent[],
): Promise<readonly Buffer[]> {
  const start = group[0]?.start ?? 0;
  const end = group.at(-1)?.end ?? start;
  if (group.length === 1) return [await blobs.readRange(key, { start, end })];
  return wideReads.run(async () => {
    const bytes = await blobs.readRange(key, { start, end });
    return group.map((each) => Buffer.from(bytes.subarray(each.start - start, each.end - start)));
  });
}

export const FIRST_MARK: LineMark = [1, 0];

interface Reach {
  readonly mark?: LineMark;
  /** Longer lines come without their bytes; left out where all were checked before. */
  readonly maxLineBytes?: number;
}

/** Yields the lines of a whole file, or from a mark on, as a stream. */
export async function* linesOfFile(
  { blobKey, bytes: end }: StoredFile,
  blobs: BlobReader,
  { mark: [firstLine, start] = FIRST_MARK, maxLineBytes = Number.MAX_SAFE_INTEGER }: Reach = {},
): AsyncGenerator<SplitLine> {
  const splitter = new LineSplitter(maxLineBytes, { start, firstLine });
  // Without the range, the lines that a shorter blob has lost would be left out in silence.
  for await (const piece of blobs.read(blobKey, { start, end }) as AsyncIterable<Buffer>) {
    for (const line of splitter.push(piece)) yield line;
    const pause = timeForMore();
    if (pause !== null) await pause;
  }
  yield* splitter.end();
}

/** Groups neighbours that one read serves. */
function groupsOf(extents: readonly InputExtent[]): InputExtent[][] {
  const groups: InputExtent[][] = [];
  for (const extent of extents) {
    const group = groups.at(-1);
    const gapBytes = extent.start - (group?.at(-1)?.end ?? Number.NEGATIVE_INFINITY);
    const readBytes = extent.end - (group?.[0]?.start ?? 0);
    if (group !== undefined && gapBytes <= MAX_GAP_BYTES && readBytes <= MAX_READ_BYTES) {
      group.push(extent);
    } else groups.push([extent]);
  }
  return groups;
}

/** Splits without a limit, as intake has refused overlong lines already. */
function* linesOf(bytes: Buffer, { start, firstLine }: InputExtent): Generator<SplitLine> {
  const splitter = new LineSplitter(bytes.length, { start, firstLine });
  yield* splitter.push(bytes);
  yield* splitter.end();
}

/** A line of a chunk without a record. */
export interface LeftLine {
  readonly number: number;
  /** The id as it stands in the input; null when it cannot be read any more. */
  readonly customId: Buffer | null;
}

interface LeftSource {
  readonly blobs: BlobReader;
  readonly key: string;
  /** Whether an error that might pass counts as unreadable. */
  readonly isLastTry: boolean;
}

/**
 * Lists the lines of a chunk that are not `answered`, in order, for the rows that say why. There are as many as the
 * chunk has lines without a record, even when the input is damaged: unreadable lines get numbers from their extents.
 */
export async function findLeftLines(
  chunk: Chunk,
  answered: ReadonlySet<number>,
  source: LeftSource,
): Promise<LeftLine[]> {
  const left: LeftLine[] = [];
  const read = new Set<number>();
  const leftCount = chunk.lineCount - answered.size;
  for (const group of groupsOf(chunk.extents)) {
    for (const line of await readIfPossible(group, source)) {
      // A damaged extent may have more lines than before, up to the numbers of the next one.
      if (read.has(line.number)) continue;
      read.add(line.number);
      if (!answered.has(line.number) && left.length < leftCount) left.push(line);
    }
  }
  const taken = new Set([...answered, ...left.map(({ number }) => number)]);
  for (const number of numbersOfUnread(chunk.extents, read)) {
    if (left.length === leftCount) break;
    if (!taken.has(number)) left.push({ number, customId: null });
    taken.add(number);
  }
  return left.sort((a, b) => a.number - b.number);
}

/** Yields the numbers that unread lines may have, without end. Each unread extent has one line or more. */
function* numbersOfUnread(
  extents: readonly InputExtent[],
  read: ReadonlySet<number>,
): Generator<number> {
  const unread = extents.flatMap(({ firstLine }, i) =>
    read.has(firstLine) ? [] : [{ firstLine, until: extents[i + 1]?.firstLine ?? Infinity }],
  );
  for (const { firstLine } of unread) yield firstLine;
  for (const { firstLine, until } of unread) {
    for (let number = firstLine; number < until; number++) yield number;
  }
  // Damaged bytes may also look like fewer lines than there were.
  for (let number = extents[0]?.firstLine ?? 1; ; number++) yield number;
}

/** Reads the lines of all extents, or only of the readable ones when one cannot be read. */
async function readIfPossible(
  extents: readonly InputExtent[],
  source: LeftSource,
): Promise<LeftLine[]> {
  const { isLastTry } = source;
  try {
    return await readLeft(extents, source);
  } catch (error) {
    if (!isLost(error) && !isLastTry) throw error;
  }
  const found: LeftLine[] = [];
  if (extents.length === 1) return found;
  for (const extent of extents) found.push(...(await readIfPossible([extent], source)));
  return found;
}

async function readLeft(extents: readonly InputExtent[], source: LeftSource): Promise<LeftLine[]> {
  const found: LeftLine[] = [];
  for await (const lines of linesOfExtents(source, extents)) {
    for (const { number, bytes } of lines) {
      const customId = await customIdOf(bytes);
      // A part of the line would keep the whole input of the chunk in memory until the last row.
      found.push({ number, customId: customId && Buffer.from(customId) });
    }
  }
  return found;
}

/** Returns the id as it stands in a line; null in one that is damaged. */
export async function customIdOf(line: Buffer | null): Promise<Buffer | null> {
  const customId = line === null ? null : ((await parsedLine(line))?.customId ?? null);
  return line === null || customId === null ? null : line.subarray(customId.start, customId.end);
}
