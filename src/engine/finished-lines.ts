/**
 * Reads the finished lines of a batch in the order of its input, while it runs and afterwards. A running batch is read
 * from its journal, as the finalizer reads it, but without the lines that have no record yet. An ended batch is read
 * from its result file, whose journal may be gone.
 *
 * The reader must hold little memory, however long the batch is: one chunk of each route, or one row of a file. The
 * batch may end while its journal is read, and the sweeper then removes the segments. The reader notices, and goes on
 * in the result file behind the last line.
 */
import type { Batch, StoredFile } from "../batch/batch.ts";
import {
  type FinishedLine,
  type FinishedLinesQuery,
  NoLineNumbers,
  type ResultKind,
} from "../batch/finished-line.ts";
import { lineNumberOf } from "../batch/outcome.ts";
import { LineSplitter } from "../batch/split.ts";
import { isFinal } from "../batch/status.ts";
import type { Blobs } from "../blobs/blobs.ts";
import { timeForMore } from "../resources/time-slice.ts";
import type { ChunkJournal } from "../store/finalizing.ts";
import type { Store } from "../store/store.ts";
import { Merge, streamsOf } from "./merge.ts";

interface FinishedLinesDeps {
  readonly store: Pick<Store, "findBatch" | "findFile" | "listChunkJournals">;
  readonly blobs: Blobs;
}

/** The limit for the rows of one reader, of which there may be some. */
const MAX_KEPT_BYTES = 4 * 1024 * 1024;
/** No row is longer than a journal record. */
const NO_LIMIT = Number.MAX_SAFE_INTEGER;

/** Yields the finished lines of `kind`. Ends at once for a batch that was deleted. */
export async function* finishedLines(
  batch: Batch,
  { kind, afterLine }: FinishedLinesQuery,
  deps: FinishedLinesDeps,
): AsyncGenerator<FinishedLine> {
  let last = afterLine;
  let current: Batch | null = batch;
  // A second loss is damage, and not the end of the batch: the lines will be sent again.
  for (let isRetry = false; current !== null; isRetry = true) {
    const source = isFinal(current.status)
      ? linesOfFile(current, kind, deps)
      : linesOfJournal(current, { kind, afterLine: last, toleratesLoss: isRetry }, deps);
    try {
      for await (const line of source) {
        if (line.number <= last) continue;
        last = line.number;
        yield line;
      }
      return;
    } catch (error) {
      if (!(error instanceof SegmentLost)) throw error;
      current = await deps.store.findBatch(current);
    }
  }
}

class SegmentLost extends Error {}

async function* linesOfJournal(
  batch: Batch,
  { kind, afterLine, toleratesLoss }: FinishedLinesQuery & { readonly toleratesLoss: boolean },
  { store, blobs }: FinishedLinesDeps,
): AsyncGenerator<FinishedLine> {
  if (batch.inProgressAtMs === null) return;
  const journals = withoutChunksBefore(afterLine, await store.listChunkJournals(batch.id));
  let isLost = false;
  const merge = new Merge({
    blobs,
    inputBlobKey: "",
    stopReason: batch.stopReason,
    left: "omitted",
    isLastTry: false,
    maxKeptBytes: MAX_KEPT_BYTES,
    onDamaged: () => {
      isLost = true;
    },
  });
  const wanted = kind === "output" ? "completed" : "failed";
  for await (const rows of merge.rows(journals)) {
    for (const row of rows) {
      if (row.kind === wanted) yield { number: row.lineNumber, row: row.bytes };
    }
    if (isLost && !toleratesLoss) throw new SegmentLost();
  }
  if (isLost && !toleratesLoss) throw new SegmentLost();
}

/** Leaves out the chunks whose lines all come before. */
function withoutChunksBefore(
  afterLine: number,
  journals: readonly ChunkJournal[],
): readonly ChunkJournal[] {
  const firstLineOf = ({ chunk }: ChunkJournal) => chunk.extents[0]?.firstLine ?? 0;
  return streamsOf(journals).flatMap((stream) => {
    const next = stream.findIndex((journal) => firstLineOf(journal) > afterLine);
    return stream.slice(next === -1 ? -1 : Math.max(0, next - 1));
  });
}

async function* linesOfFile(
  batch: Batch,
  kind: ResultKind,
  { store, blobs }: FinishedLinesDeps,
): AsyncGenerator<FinishedLine> {
  const id = kind === "output" ? batch.outputFileId : batch.errorFileId;
  const file: StoredFile | null =
    id === null ? null : await store.findFile({ project: batch.project, id });
  if (file === null) return;
  const splitter = new LineSplitter(NO_LIMIT, { start: 0, firstLine: 1 });
  let last = 0;
  for await (const piece of blobs.read(file.blobKey) as AsyncIterable<Buffer>) {
    for (const { bytes } of splitter.push(piece)) {
      if (bytes === null) continue;
      const number = lineNumberOf(bytes);
      // Where an input was damaged, two lines may have the same number.
      if (number === null || number < last) throw new NoLineNumbers();
      last = number;
      yield { number, row: Buffer.concat([bytes, NEWLINE]) };
    }
    const pause = timeForMore();
    if (pause !== null) await pause;
  }
}

const NEWLINE = Buffer.from("\n");
