/**
 * Plans the chunks of a batch: runs of lines for one route, small enough to lease, retry and merge.
 *
 * The planner takes the lines of a file in order and keeps one open chunk for each route. Every line must belong to
 * exactly one chunk, and the lines of a chunk must stay in file order, for any mix of routes. The lines of a sample get
 * chunks of their own, which have the first numbers, so that they can run before all others.
 */
import type { InputExtent, LineMark } from "./batch.ts";

export interface ChunkLimits {
  readonly maxLines: number;
  /**
   * The most input bytes of a chunk, with blank lines inside an extent. A single longer line makes a chunk of its own.
   */
  readonly maxBytes: number;
}

export const DEFAULT_CHUNK_LIMITS: ChunkLimits = { maxLines: 512, maxBytes: 4 * 1024 * 1024 };

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

/** All chunks of a batch, and where its lines are. */
export interface Plan {
  readonly chunks: readonly PlannedChunk[];
  /** The number of chunks with sampled lines, which come first. */
  readonly sampleChunkCount: number;
  readonly lineMarks: readonly LineMark[];
}

interface OpenChunk {
  model: string;
  isSampled: boolean;
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
      this.#latest = this.#openChunk(line);
      return;
    }
    if (adjoining === undefined) open.extents.push(extentOf(line));
    else adjoining.end = line.end;
    open.lineCount++;
    open.bytes += addedBytes;
    this.#latest = open;
  }

  /** Returns all chunks: first those of the sample, each in the order of their first lines. */
  finish(): Plan {
    const sampled = this.#chunks.filter(({ isSampled }) => isSampled);
    const others = this.#chunks.filter(({ isSampled }) => !isSampled);
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
    const { maxLines, maxBytes } = this.#limits;
    return chunk.lineCount < maxLines && chunk.bytes + addedBytes <= maxBytes;
  }

  #openChunk(line: PlannedLine): OpenChunk {
    const model = this.#models.get(line.routeKey) ?? line.model;
    this.#models.set(line.routeKey, model);
    const chunk: OpenChunk = {
      model,
      isSampled: line.isSampled,
      lineCount: 1,
      bytes: line.end - line.start,
      extents: [extentOf(line)],
    };
    this.#chunks.push(chunk);
    this.#openFor(line).set(line.routeKey, chunk);
    return chunk;
  }
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
