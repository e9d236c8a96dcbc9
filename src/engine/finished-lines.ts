/**
 * Reads the finished lines of a batch in the order of its input, while it runs and afterwards. A running batch is read
 * from its journal, as the finalizer reads it, but without the lines that have no record yet. An ended batch is read
 * from its result file, whose journal may be gone.
 *
 * The reader must hold little memory, however long the batch is: one chunk of each route, or one row of a file. The
 * batch may end while its journal is read, and the sweeper then removes the segments. The reader notices, and goes on
 * in the result file behind the last line.
 */
import type { Batch } from "../batch/batch.ts";
import type { FinishedLine, FinishedLinesQuery } from "../batch/finished-line.ts";
import { isFinal } from "../batch/status.ts";
import type { Blobs } from "../blobs/blobs.ts";
import type { ChunkJournal } from "../store/finalizing.ts";
import type { Store } from "../store/store.ts";
import { Merge, streamsOf } from "./merge.ts";
import { keptKind, keptRows } from "./merged-lines.ts";
import { inLineOrder, resultRows } from "./result-rows.ts";

interface FinishedLinesDeps {
  readonly store: Pick<Store, "findBatch" | "findFile" | "findMergedResults" | "listChunkJournals">;
  readonly blobs: Blobs;
}

/** The limit for the rows of one reader, of which there may be some. */
const MAX_KEPT_BYTES = 4 * 1024 * 1024;

/** Yields the finished lines of `kind`. Ends at once for a batch that was deleted. */
export async function* finishedLines(
  batch: Batch,
  { kind, afterLine, endsAtGap = false }: FinishedLinesQuery,
  deps: FinishedLinesDeps,
): AsyncGenerator<FinishedLine> {
  let last = afterLine;
  let current: Batch | null = batch;
  // A second loss is damage, and not the end of the batch: the lines will be sent again.
  for (let isRetry = false; current !== null; isRetry = true) {
    const source = isFinal(current.status)
      ? linesOfFile(current, { kind, afterLine: last }, deps)
      : linesSoFar(current, { kind, afterLine: last, endsAtGap, toleratesLoss: isRetry }, deps);
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

interface JournalQuery extends FinishedLinesQuery {
  readonly toleratesLoss: boolean;
}

/** The first line that has not ended, once the journal was read up to it. */
interface Gap {
  line: number;
}

/** Yields the lines that will be in the result file: those of a merged batch have the rows of its source between them. */
async function* linesSoFar(
  batch: Batch,
  query: JournalQuery,
  deps: FinishedLinesDeps,
): AsyncGenerator<FinishedLine> {
  if (batch.inProgressAtMs === null) return;
  const gap = { line: Number.POSITIVE_INFINITY };
  const own = linesOfJournal(batch, { ...query, gap }, deps);
  if (keptKind(batch) !== query.kind) {
    yield* own;
    return;
  }
  for await (const line of inLineOrder(own, keptRows(batch, query.afterLine, deps))) {
    if (line.number > gap.line) return;
    yield line;
  }
}

async function* linesOfJournal(
  batch: Batch,
  { kind, afterLine, endsAtGap = false, toleratesLoss, gap }: JournalQuery & { readonly gap: Gap },
  { store, blobs }: FinishedLinesDeps,
): AsyncGenerator<FinishedLine> {
  const journals = withoutChunksBefore(afterLine, await store.listChunkJournals(batch.id));
  let isLost = false;
  const merge = new Merge({
    blobs,
    inputBlobKey: `files/${batch.inputFileId}`,
    stopReason: batch.stopReason,
    left: endsAtGap ? "end" : "omitted",
    isLastTry: false,
    maxKeptBytes: MAX_KEPT_BYTES,
    onDamaged: () => {
      isLost = true;
    },
  });
  const wanted = kind === "output" ? "completed" : "failed";
  for await (const rows of merge.rows(journals)) {
    for (const row of rows) {
      if (row.kind === "not_run") {
        gap.line = row.lineNumber;
        return;
      }
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
  { kind, afterLine }: Pick<FinishedLinesQuery, "kind" | "afterLine">,
  { store, blobs }: FinishedLinesDeps,
): AsyncGenerator<FinishedLine> {
  const id = kind === "output" ? batch.outputFileId : batch.errorFileId;
  const file = id === null ? null : await store.findFile({ project: batch.project, id });
  yield* resultRows(file, { blobs, afterLine });
}
