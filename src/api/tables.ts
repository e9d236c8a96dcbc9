/**
 * Gives clients the result files as tables. A conversion has a thread and up to some hundred megabytes for a very long row,
 * so the number of them is bounded. A client that hardly reads keeps its conversion only while no one else wants one.
 */
import type { Readable } from "node:stream";
import type { StoredFile } from "../batch/batch.ts";
import type { Clock } from "../clock.ts";
import type { TableFormat } from "../contract/results.ts";
import { PublicError } from "../errors.ts";
import { converted } from "../formats/converted.ts";
import { ClientLimit } from "./client-limit.ts";
import type { Files } from "./files.ts";

const MAX_CONVERSIONS = 4;
const MAX_CONVERSIONS_OF_PROJECT = 2;

/** A client that takes no piece for so long may lose its conversion. */
const STALLED_MS = 10_000;
/** The size of a piece. */
const PIECE_BYTES = 64 * 1024;

export interface TableReading extends Disposable {
  readonly content: AsyncGenerator<Buffer>;
  /** Aborts when the client loses its conversion to another. */
  readonly over: AbortSignal;
}

interface TablesDeps {
  readonly files: Pick<Files, "openContent">;
  readonly clock: Pick<Clock, "elapsedMs">;
}

export class Tables {
  readonly #deps: TablesDeps;
  readonly #readers = new Set<Reader>();
  readonly #conversions = new ClientLimit({
    total: MAX_CONVERSIONS,
    ofProject: MAX_CONVERSIONS_OF_PROJECT,
    message: "Too many clients are downloading tables. Please try again, or ask for jsonl.",
  });

  constructor(deps: TablesDeps) {
    this.#deps = deps;
  }

  /** Opens a result file as a table. It ends with `disconnected`. The caller must dispose of it. */
  async open(
    file: StoredFile,
    format: TableFormat,
    disconnected: AbortSignal,
  ): Promise<TableReading> {
    const { files, clock } = this.#deps;
    const conversion = this.#acquire(file.project);
    let rows: Readable;
    try {
      rows = await files.openContent(file, { start: 0, end: file.bytes });
    } catch (error) {
      conversion[Symbol.dispose]();
      throw error;
    }
    const over = new AbortController();
    const close = () => {
      this.#readers.delete(reader);
      rows.destroy();
      conversion[Symbol.dispose]();
    };
    const reader: Reader = {
      project: file.project,
      waitsSinceMs: null,
      end: () => {
        over.abort(
          new Error(
            "the client had read nothing for too long, and another waited for its conversion",
          ),
        );
        close();
      },
    };
    this.#readers.add(reader);
    const table = converted(rows, format, AbortSignal.any([disconnected, over.signal]));
    return { content: watched(table, reader, clock), over: over.signal, [Symbol.dispose]: close };
  }

  #acquire(project: string): Disposable {
    try {
      return this.#conversions.acquire(project);
    } catch (error) {
      const stalled = this.#longestStalled(project);
      if (stalled === undefined) throw error;
      stalled.end();
      return this.#conversions.acquire(project);
    }
  }

  /** Returns the reader that may end for a client of a project: one of the project itself, if it has any. */
  #longestStalled(project: string): Reader | undefined {
    const readers = [...this.#readers];
    const own = readers.filter((reader) => reader.project === project);
    const sinceMs = this.#deps.clock.elapsedMs() - STALLED_MS;
    const beganAtMs = ({ waitsSinceMs }: Reader) => waitsSinceMs ?? Number.POSITIVE_INFINITY;
    return (own.length > 0 ? own : readers)
      .filter((reader) => beganAtMs(reader) <= sinceMs)
      .sort((a, b) => beganAtMs(a) - beganAtMs(b))[0];
  }
}

interface Reader {
  readonly project: string;
  /** The elapsed time since which the next piece waits for the client; null while it is made. */
  waitsSinceMs: number | null;
  readonly end: () => void;
}

/** Notes since when the client has taken no piece. */
async function* watched(
  table: AsyncIterable<Buffer>,
  reader: Reader,
  clock: Pick<Clock, "elapsedMs">,
): AsyncGenerator<Buffer> {
  for await (const bytes of table) {
    for (let at = 0; at < bytes.length; at += PIECE_BYTES) {
      reader.waitsSinceMs = clock.elapsedMs();
      yield bytes.subarray(at, at + PIECE_BYTES);
    }
    reader.waitsSinceMs = null;
  }
}

/** Throws for a file that has no rows of results. */
export function assertHasResults({ purpose }: StoredFile, format: TableFormat): void {
  if (purpose === "batch_output") return;
  throw new PublicError(
    "invalid_value",
    `Invalid 'format': only files of purpose 'batch_output' can be downloaded as ${format}, and this one has purpose '${purpose}'.`,
    { param: "format" },
  );
}
