/**
 * Plans the chunks of a batch: runs of lines for one route, small enough to lease, retry and merge.
 *
 * The planner takes the lines of a file in order and keeps one open chunk for each route. Every line must belong to
 * exactly one chunk, and the lines of a chunk must stay in file order, for any mix of routes. The lines of a sample get
 * chunks of their own, which have the first numbers, so that they can run before all others.
 *
 * A chunk costs much the same whatever its size, so the chunks of a long file are joined. Each takes a part of the
 * lines that are left, so they become smaller towards the end: workers that share a batch end at about the same time
 * (guided self-scheduling: C. D. Polychronopoulos, D. J. Kuck, 1987).
 */
import type { InputExtent, LineMark } from "./batch.ts";

export interface ChunkLimits {
  /** The most lines of a chunk that is not joined with others. */
  readonly unitLines: number;
  /** The most lines of any chunk. */
  readonly maxLines: number;
  /**
   * The most input bytes of a chunk, with blank lines inside an extent. A single longer line makes a chunk of its own.
   */
  readonly maxBytes: number;
}

export const DEFAULT_CHUNK_LIMITS: ChunkLimits = {
  unitLines: 512,
  maxLines: 2_048,
  maxBytes: 4 * 1024 * 1024,
};

/**
 * A joined chunk takes at most this part of the lines that are left, so that workers of one batch end at about the same
 * time.
 */
const LEFT_PER_JOINED = 16;

export interface PlannedChunk {
  readonly number: number;
  /** The public model name that the first line of the route asked for. All chunks of the route have the same name. */
  readonly model: string;
  readonly lineCount: number;
  readonly extents: readonly InputExtent[];
}

export interface PlannedLine {
  readonly number: number;
  /** The number minus the number in the file: lines of a merged batch have the numbers that they have in its source. */
  readonly shift: number;
  readonly start: number;
  readonly end: number;
  readonly model: string;
  /** A key that is equal for models that the same targets serve. */
  readonly routeKey: string;
  readonly isSampled: boolean;
}

/** The chunks of a batch, and the places of its lines. */
export interface Plan {
  readonly chunks: readonly PlannedChunk[];
  /** The number of chunks with sampled lines, which come first. */
  readonly sampleChunkCount: number;
  readonly lineMarks: readonly LineMark[];
}

interface OpenChunk {
  readonly model: string;
  readonly isSampled: boolean;
  /** Whether nothing but blank lines lies between it and the chunk of its route before it. */
  readonly isAdjoining: boolean;
  lineCount: number;
  bytes: number;
  extents: { start: number; end: number; firstLine: number }[];
}

export class Planner {
  readonly #limits: ChunkLimits;
  readonly #chunks: OpenChunk[] = [];
  readonly #open = { sampled: new Map<string, OpenChunk>(), other: new Map<string, OpenChunk>() };
  readonly #models = new Map<string, string>();
  readonly #marks = new LineMarks();
  #latest: OpenChunk | null = null;
  #latestShift = 0;

  constructor(limits: ChunkLimits) {
    this.#limits = limits;
  }

  add(line: PlannedLine): void {
    this.#marks.add(line);
    const open = this.#openFor(line).get(line.routeKey);
    // Only blank lines lie between the latest line and this one, and they may lie inside an extent.
    const isNext = open === this.#latest && line.shift === this.#latestShift;
    const adjoining = open !== undefined && isNext ? open.extents.at(-1) : undefined;
    this.#latestShift = line.shift;
    const addedBytes = line.end - (adjoining?.end ?? line.start);
    if (open === undefined || !this.#hasRoom(open, addedBytes)) {
      this.#latest = this.#openChunk(line, adjoining !== undefined);
      return;
    }
    if (adjoining === undefined) open.extents.push(extentOf(line));
    else adjoining.end = line.end;
    open.lineCount++;
    open.bytes += addedBytes;
    this.#latest = open;
  }

  /** Leaves a line out of all chunks. No extent may span it. */
  passOver(line: Pick<PlannedLine, "number" | "start">): void {
    this.#marks.add(line);
    this.#latest = null;
  }

  /** Returns all chunks: first those of the sample, each in the order of their first lines. */
  finish(): Plan {
    const sampled = this.#join(this.#chunks.filter(({ isSampled }) => isSampled));
    const others = this.#join(this.#chunks.filter(({ isSampled }) => !isSampled));
    const chunks = [...sampled, ...others].map(({ model, lineCount, extents }, number) => ({
      number,
      model,
      lineCount,
      extents,
    }));
    return { chunks, sampleChunkCount: sampled.length, lineMarks: this.#marks.list };
  }

  #openFor({ isSampled }: PlannedLine): Map<string, OpenChunk> {
    return isSampled ? this.#open.sampled : this.#open.other;
  }

  #hasRoom(chunk: OpenChunk, addedBytes: number): boolean {
    const { unitLines, maxBytes } = this.#limits;
    return chunk.lineCount < unitLines && chunk.bytes + addedBytes <= maxBytes;
  }

  /** Joins the chunks of each route where many are left. All chunks of a route have the same model. */
  #join(chunks: readonly OpenChunk[]): OpenChunk[] {
    const { unitLines, maxLines } = this.#limits;
    const leftCounts = new Map<string, number>();
    for (const { model } of chunks) leftCounts.set(model, (leftCounts.get(model) ?? 0) + 1);
    const growing = new Map<string, { chunk: OpenChunk; lines: number }>();
    return chunks.filter((chunk) => {
      const { model } = chunk;
      const leftCount = leftCounts.get(model) ?? 0;
      leftCounts.set(model, leftCount - 1);
      const open = growing.get(model);
      if (open !== undefined && open.chunk.lineCount + chunk.lineCount <= open.lines) {
        if (append(chunk, open.chunk, this.#limits)) return false;
      }
      const lines = Math.min(maxLines, unitLines * Math.floor(leftCount / LEFT_PER_JOINED));
      growing.set(model, { chunk, lines });
      return true;
    });
  }

  #openChunk(line: PlannedLine, isAdjoining: boolean): OpenChunk {
    const model = this.#models.get(line.routeKey) ?? line.model;
    this.#models.set(line.routeKey, model);
    const chunk: OpenChunk = {
      model,
      isSampled: line.isSampled,
      isAdjoining,
      lineCount: 1,
      bytes: line.end - line.start,
      extents: [extentOf(line)],
    };
    this.#chunks.push(chunk);
    this.#openFor(line).set(line.routeKey, chunk);
    return chunk;
  }
}

/**
 * Adds the lines of a chunk to the chunk of its route before it, unless that would be too large. The row of a chunk lists its
 * extents, and the store writes and deletes many rows in one step, so a joined chunk has no more of them than others.
 */
function append(chunk: OpenChunk, to: OpenChunk, { unitLines, maxBytes }: ChunkLimits): boolean {
  const [first, ...others] = chunk.extents;
  const last = to.extents.at(-1);
  if (first === undefined || last === undefined) return false;
  const gapBytes = chunk.isAdjoining ? first.start - last.end : 0;
  if (to.bytes + gapBytes + chunk.bytes > maxBytes) return false;
  if (to.extents.length + chunk.extents.length > unitLines) return false;
  if (chunk.isAdjoining) last.end = first.end;
  else to.extents.push(first);
  to.extents.push(...others);
  to.bytes += gapBytes + chunk.bytes;
  to.lineCount += chunk.lineCount;
  return true;
}

/** The marks of one file. Twice as many would make the row of the batch larger than its longest lists. */
const MAX_MARKS = 128;
const FIRST_STRIDE_BYTES = 64 * 1024;

/** Marks lines at equal distances, which double whenever there are too many marks. */
class LineMarks {
  #marks: LineMark[] = [];
  #strideBytes = FIRST_STRIDE_BYTES;

  add({ number, start }: Pick<PlannedLine, "number" | "start">): void {
    const last = this.#marks.at(-1);
    if (last !== undefined && start < last[1] + this.#strideBytes) return;
    this.#marks.push([number, start]);
    if (this.#marks.length <= MAX_MARKS) return;
    this.#marks = this.#marks.filter((_, i) => i % 2 === 0);
    this.#strideBytes *= 2;
  }

  get list(): readonly LineMark[] {
    return this.#marks;
  }
}

/** Chooses `count` of `total` lines at equal distances, by their place from 0. */
export const spreadOver =
  (total: number, count: number) =>
  (place: number): boolean =>
    place === 0 || Math.floor((place * count) / total) > Math.floor(((place - 1) * count) / total);

const extentOf = ({ start, end, number }: PlannedLine) => ({ start, end, firstLine: number });
