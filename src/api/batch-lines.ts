/** Answers questions about the lines of a batch, beside the result files: pages of lines, and groups of failures. */
import type { Batch, ScopedId } from "../batch/batch.ts";
import type { FailureExample, LinePage, LineQuery } from "../batch/batch-line.ts";
import { type FailureGroup, isSameFailure, OTHER, shownFailures } from "../batch/failures.ts";
import {
  type FinishedLinesQuery,
  type PassedLine,
  ResultFileDeleted,
} from "../batch/finished-line.ts";
import { failureIn, failureInHead, ROW_HEAD_BYTES, type RowFailure } from "../batch/row-failure.ts";
import type { Room } from "../resources/memory-budget.ts";
import { timeForMore } from "../resources/time-slice.ts";
import type { Batches } from "./batches.ts";
import type { ClientLimit } from "./client-limit.ts";
import { publicError } from "./results.ts";
import { noRoomFor } from "./room-wait.ts";

/** The failed lines that are shown of each group. */
const MAX_EXAMPLES = 3;
/** The bytes of rows that are read for examples, to the end of a row. */
const MAX_READ_BYTES = 64 * 1024 * 1024;

export interface BatchLinesDeps {
  readonly batches: Pick<Batches, "find">;
  readonly readers: ClientLimit;
  /** Calls `reserve` with the length of bytes before it reads them to keep them. */
  readonly readLinePage: (
    batch: Batch,
    query: LineQuery,
    reserve: (bytes: number) => void,
  ) => Promise<LinePage>;
  readonly passedLines: (batch: Batch, query: FinishedLinesQuery) => AsyncGenerator<PassedLine>;
}

interface LinesReading extends AsyncDisposable {
  readonly page: LinePage;
}

interface FailureExamples extends FailureGroup {
  readonly examples: readonly FailureExample[];
}

export class BatchLines {
  readonly #deps: BatchLinesDeps;

  constructor(deps: BatchLinesDeps) {
    this.#deps = deps;
  }

  /**
   * Reads a page into the memory of `room`. It counts as a reader until it is disposed of, because its bytes are in memory until
   * they are sent. A page of one long line may have 100 MB.
   */
  async open(asked: ScopedId<"batch">, query: LineQuery, room: Room): Promise<LinesReading> {
    const { batches, readers, readLinePage } = this.#deps;
    const batch = await batches.find(asked);
    const reader = readers.acquire(asked.project);
    try {
      const page = await readLinePage(batch, query, (bytes) => {
        if (room.add(bytes) !== null) throw noRoomFor("lines", room);
      });
      return {
        page,
        async [Symbol.asyncDispose]() {
          reader[Symbol.dispose]();
        },
      };
    } catch (error) {
      reader[Symbol.dispose]();
      throw publicError(error);
    }
  }

  /** Returns the groups of failed lines with the first lines of each. */
  async failures(asked: ScopedId<"batch">): Promise<readonly FailureExamples[]> {
    const { batches, readers, passedLines } = this.#deps;
    const batch = await batches.find(asked);
    const groups = shownFailures(batch).map((group) => ({
      ...group,
      examples: [] as FailureExample[],
    }));
    using _reader = readers.acquire(asked.project);
    const other = groups.find((group) => isSameFailure(group, OTHER));
    const wanted = (group: FailureExamples) =>
      group.examples.length < Math.min(MAX_EXAMPLES, group.count);
    let readBytes = 0;
    try {
      for await (const line of passedLines(batch, { kind: "error", afterLine: 0 })) {
        const { failure, customId, message } = await failureOf(line);
        const group = groups.find((each) => isSameFailure(each, failure)) ?? other;
        if (group !== undefined && wanted(group))
          group.examples.push({ line: line.number, customId, message });
        readBytes += line.bytes;
        if (readBytes > MAX_READ_BYTES || !groups.some(wanted)) break;
        await timeForMore();
      }
    } catch (error) {
      // The groups are known without their examples.
      if (!(error instanceof ResultFileDeleted)) throw publicError(error);
    }
    return groups;
  }
}

/** Reads only the beginning of a long row. */
async function failureOf({ row }: PassedLine): Promise<RowFailure> {
  if (Buffer.isBuffer(row)) return failureIn(row);
  const pieces: Buffer[] = [];
  let bytes = 0;
  for await (const piece of row) {
    pieces.push(piece);
    bytes += piece.length;
    if (bytes >= ROW_HEAD_BYTES) break;
  }
  return failureInHead(Buffer.concat(pieces));
}
