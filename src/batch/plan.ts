/**
 * Lines become chunks: runs of one route, small enough to lease, retry and merge.
 *
 * The planner sees the lines of a file in order and keeps one open chunk for each route. Whatever the
 * mix of routes, every line belongs to exactly one chunk, and a chunk's lines are in file order.
 */
import type { InputExtent } from "./batch.ts";

export interface ChunkLimits {
  readonly maxLines: number;
  /** Of input. A single longer line still makes a chunk of its own. */
  readonly maxBytes: number;
}

export const DEFAULT_CHUNK_LIMITS: ChunkLimits = { maxLines: 256, maxBytes: 4 * 1024 * 1024 };

export interface PlannedChunk {
  readonly number: number;
  /** The public model name that its first line asked for; it leads to the chunk's route. */
  readonly route: string;
  readonly lineCount: number;
  readonly extents: readonly InputExtent[];
}

export interface PlannedLine {
  readonly number: number;
  readonly start: number;
  readonly end: number;
  readonly model: string;
  /** Equal for models that the same targets serve. */
  readonly routeKey: string;
}

interface OpenChunk {
  number: number;
  route: string;
  lineCount: number;
  bytes: number;
  extents: { start: number; end: number; firstLine: number }[];
}

export class Planner {
  readonly #limits: ChunkLimits;
  readonly #chunks: OpenChunk[] = [];
  readonly #open = new Map<string, OpenChunk>();
  #latest: OpenChunk | null = null;

  constructor(limits: ChunkLimits) {
    this.#limits = limits;
  }

  add(line: PlannedLine): void {
    const lineBytes = line.end - line.start;
    const chunk = this.#chunkWithRoom(line, lineBytes);
    const lastExtent = chunk.extents.at(-1);
    // Between this line and the latest one there are only blank lines: they may lie inside an extent.
    if (lastExtent !== undefined && chunk === this.#latest) lastExtent.end = line.end;
    else chunk.extents.push({ start: line.start, end: line.end, firstLine: line.number });
    chunk.lineCount++;
    chunk.bytes += lineBytes;
    this.#latest = chunk;
  }

  /** All chunks, by first line. */
  finish(): PlannedChunk[] {
    return this.#chunks.map(({ number, route, lineCount, extents }) => ({
      number,
      route,
      lineCount,
      extents,
    }));
  }

  #chunkWithRoom(line: PlannedLine, lineBytes: number): OpenChunk {
    const open = this.#open.get(line.routeKey);
    if (
      open !== undefined &&
      open.lineCount < this.#limits.maxLines &&
      open.bytes + lineBytes <= this.#limits.maxBytes
    ) {
      return open;
    }
    const chunk: OpenChunk = {
      number: this.#chunks.length,
      route: line.model,
      lineCount: 0,
      bytes: 0,
      extents: [],
    };
    this.#chunks.push(chunk);
    this.#open.set(line.routeKey, chunk);
    return chunk;
  }
}
