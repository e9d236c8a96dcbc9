/**
 * Plans the chunks of a batch: runs of lines for one route, small enough to lease, retry and merge.
 *
 * The planner takes the lines of a file in order and keeps one open chunk for each route. Every line must belong to
 * exactly one chunk, and the lines of a chunk must stay in file order, for any mix of routes.
 */
import type { InputExtent } from "./batch.ts";

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
  readonly start: number;
  readonly end: number;
  readonly model: string;
  /** A key that is equal for models that the same targets serve. */
  readonly routeKey: string;
}

interface OpenChunk {
  number: number;
  model: string;
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
    const open = this.#open.get(line.routeKey);
    // Only blank lines lie between the latest line and this one, and they may lie inside an extent.
    const adjoining = open !== undefined && open === this.#latest ? open.extents.at(-1) : undefined;
    const addedBytes = line.end - (adjoining?.end ?? line.start);
    if (open === undefined || !this.#hasRoom(open, addedBytes)) {
      this.#latest = this.#openChunk(line, open?.model ?? line.model);
      return;
    }
    if (adjoining === undefined) open.extents.push(extentOf(line));
    else adjoining.end = line.end;
    open.lineCount++;
    open.bytes += addedBytes;
    this.#latest = open;
  }

  /** Returns all chunks, in the order of their first lines. */
  finish(): PlannedChunk[] {
    return this.#chunks.map(({ number, model, lineCount, extents }) => ({
      number,
      model,
      lineCount,
      extents,
    }));
  }

  #hasRoom(chunk: OpenChunk, addedBytes: number): boolean {
    const { maxLines, maxBytes } = this.#limits;
    return chunk.lineCount < maxLines && chunk.bytes + addedBytes <= maxBytes;
  }

  #openChunk(line: PlannedLine, model: string): OpenChunk {
    const chunk: OpenChunk = {
      number: this.#chunks.length,
      model,
      lineCount: 1,
      bytes: line.end - line.start,
      extents: [extentOf(line)],
    };
    this.#chunks.push(chunk);
    this.#open.set(line.routeKey, chunk);
    return chunk;
  }
}

const extentOf = ({ start, end, number }: PlannedLine) => ({ start, end, firstLine: number });
