/**
 * Reads the finished lines of a batch in the order of its input, while it runs and afterwards. A running batch is read
 * from its journal, as the finalizer reads it, but without the lines that have no record yet. An ended batch is read
 * from its result file, whose journal may be gone.
 *
 * The reader must hold little memory, however long the batch and its rows are: the small rows of one chunk of each route,
 * or one small row of a file. The batch may end while its journal is read, and the sweeper then removes the segments. The
 * reader notices, and goes on in the result file behind the last line.
 */
import type { Batch } from "../../batch/batch.ts";
import {
  type FinishedLinesQuery,
  type PassedLine,
  ResultFileDeleted,
  type ResultKind,
} from "../../batch/finished-line.ts";
import { isFinal } from "../../batch/status.ts";
import type { BlobReader } from "../../blobs/blobs.ts";
import { timeForMore } from "../../resources/time-slice.ts";
import type { Store } from "../../store/store.ts";
import { isLost as isBlobLost } from "../journal/segment.ts";
import type { Row, RowPlace } from "./chunk-records.ts";
import { JournalOver, type JournalWindow, journalWindows } from "./journal-windows.ts";
import { Merge, NO_SUCH_BLOB } from "./merge.ts";
import { keptKind, readableKeptRows } from "./merged-lines.ts";
import { inLineOrder, type PlacedLine, placedRows, ROW_END, rowBytes } from "./result-rows.ts";

export interface FinishedLinesDeps {
  readonly store: Pick<
    Store,
    | "findBatch"
    | "findFile"
    | "findInput"
    | "findJournalStart"
    | "findMergedResults"
    | "listJournalPage"
  >;
  readonly blobs: BlobReader;
}

/** The limit for the rows of one reader, of which there may be some. */
const MAX_KEPT_BYTES = 4 * 1024 * 1024;
/** The limit for what one reader has read ahead. A client that stops reading keeps it in memory for as long as it likes. */
const MAX_AHEAD_BYTES = 1024 * 1024;

/** The longest row that a reader keeps in memory while its client reads. */
export const MAX_PASSED_ROW_BYTES = 256 * 1024;

/** Yields the finished lines as {@link placedLines} does, for a client that may be slow: no long row is held in memory. */
export async function* passedLines(
  batch: Batch,
  query: FinishedLinesQuery,
  deps: FinishedLinesDeps,
): AsyncGenerator<PassedLine> {
  const placed = placedLines(batch, { ...query, maxRowBytes: MAX_PASSED_ROW_BYTES }, deps);
  for await (const { number, row } of placed) {
    const placeNow = () => placeInFile(batch, { kind: query.kind, number }, deps);
    const passed = Buffer.isBuffer(row) ? row : rowPieces(row, placeNow, deps.blobs);
    // To send a short row costs more than to find it.
    const pause = timeForMore();
    if (pause !== null) await pause;
    yield { number, bytes: rowBytes(row), row: passed };
  }
}

/** Yields the bytes of a row. Asks where it is now if its blob is gone, as a journal is once the batch has ended. */
async function* rowPieces(
  place: RowPlace,
  placeNow: () => Promise<RowPlace | null>,
  blobs: BlobReader,
): AsyncGenerator<Buffer> {
  let hasBegun = false;
  try {
    for await (const piece of piecesAt(place, blobs)) {
      hasBegun = true;
      yield piece;
    }
    return;
  } catch (error) {
    const moved = !hasBegun && isBlobLost(error) ? await placeNow() : null;
    if (moved === null) throw error;
    yield* piecesAt(moved, blobs);
  }
}

/** Opens the blob with the first piece. */
async function* piecesAt({ blobKey, start, end }: RowPlace, blobs: BlobReader) {
  yield* blobs.read(blobKey, { start, end }) as AsyncIterable<Buffer>;
}

/** Finds the row of a line in the result file; null while the batch runs. */
async function placeInFile(
  batch: Batch,
  { kind, number }: { readonly kind: ResultKind; readonly number: number },
  deps: FinishedLinesDeps,
): Promise<RowPlace | null> {
  const found = await deps.store.findBatch(batch);
  if (found === null || !isFinal(found.status)) return null;
  // Every row is longer than that, so each comes as its place.
  const query = { kind, afterLine: number - 1, maxRowBytes: 0 };
  for await (const line of linesOfResults(found, query, deps)) {
    return line.number === number && !Buffer.isBuffer(line.row) ? line.row : null;
  }
  return null;
}

interface PlacedLinesQuery extends FinishedLinesQuery {
  readonly maxRowBytes: number;
}

/**
 * Yields the finished lines of `kind`, and only the places of rows with more than `maxRowBytes`. Ends at once for a batch
 * that was deleted. Throws {@link ResultFileDeleted} for an ended batch without its file.
 */
export async function* placedLines(
  batch: Batch,
  { kind, afterLine, ...options }: PlacedLinesQuery,
  deps: FinishedLinesDeps,
): AsyncGenerator<PlacedLine> {
  let last = afterLine;
  let current: Batch | null = batch;
  // A second loss is damage, and not the end of the batch: the lines will be sent again.
  for (let isRetry = false; current !== null; isRetry = true) {
    const source = isFinal(current.status)
      ? linesOfResults(current, { kind, afterLine: last, ...options }, deps)
      : linesSoFar(current, { kind, afterLine: last, ...options, toleratesLoss: isRetry }, deps);
    try {
      for await (const line of source) {
        if (line.number <= last) continue;
        last = line.number;
        yield line;
      }
      return;
    } catch (error) {
      current = await afterLoss(current, error, deps.store);
    }
  }
}

/**
 * Returns the batch as it is now, null once it was deleted, where its journal was lost to a reader. Throws any other error, and
 * the loss of a row before the end of the batch, which is damage: the rows of a large chunk are read one by one.
 */
async function afterLoss(
  batch: Batch,
  error: unknown,
  store: FinishedLinesDeps["store"],
): Promise<Batch | null> {
  if (error instanceof SegmentLost || error instanceof JournalOver) return store.findBatch(batch);
  if (isFinal(batch.status) || !isBlobLost(error)) throw error;
  const found = await store.findBatch(batch);
  if (found !== null && !isFinal(found.status)) throw error;
  return found;
}

class SegmentLost extends Error {}

interface JournalQuery extends PlacedLinesQuery {
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
): AsyncGenerator<PlacedLine> {
  if (batch.inProgressAtMs === null) return;
  const gap = { line: Number.POSITIVE_INFINITY };
  const own = linesOfJournal(batch, { ...query, gap }, deps);
  const isMixed = keptKind(batch) === query.kind;
  const lines = isMixed ? inLineOrder(own, readableKeptRows(batch, query, deps)) : own;
  for await (const line of lines) {
    if (line.number > gap.line) break;
    yield line;
  }
  if (gap.line !== Number.POSITIVE_INFINITY) query.onGap?.(gap.line);
}

async function* linesOfJournal(
  batch: Batch,
  { kind, gap, ...query }: JournalQuery & { readonly gap: Gap },
  { store, blobs }: FinishedLinesDeps,
): AsyncGenerator<PlacedLine> {
  const { afterLine, endsAtGap = false } = query;
  const wanted = kind === "output" ? "completed" : "failed";
  const firstOpenLine = endsAtGap ? firstDuplicateAfter(batch, afterLine) : null;
  if (firstOpenLine !== null) gap.line = firstOpenLine;
  const inputBlobKey = endsAtGap ? (await store.findInput(batch))?.blobKey : undefined;
  // Only a reader of all records sees a gap.
  const part = endsAtGap ? "all" : wanted;
  const windows = journalWindows(batch, { afterLine, part, store });
  const rows = rowsIn(windows, { ...query, batch, inputBlobKey, blobs });
  for await (const group of rows) {
    for (const row of group) {
      const isOpen = firstOpenLine !== null && row.lineNumber > firstOpenLine;
      if (isOpen || row.kind === "not_run") {
        gap.line = Math.min(gap.line, row.lineNumber);
        return;
      }
      if (row.kind === wanted) yield placedLine(row);
    }
  }
}

function placedLine({ lineNumber: number, bytes, rest }: Row): PlacedLine {
  if (rest === undefined) return { number, row: bytes };
  return { number, row: { ...rest, end: rest.end - ROW_END.length } };
}

interface RowsOptions
  extends Pick<JournalQuery, "afterLine" | "endsAtGap" | "maxRowBytes" | "toleratesLoss"> {
  readonly batch: Batch;
  /** Only the lines before a gap are found in the input. */
  readonly inputBlobKey: string | undefined;
  readonly blobs: BlobReader;
}

/** Merges one window after the other. */
async function* rowsIn(
  windows: AsyncGenerator<JournalWindow>,
  {
    batch,
    inputBlobKey = NO_SUCH_BLOB,
    afterLine,
    endsAtGap = false,
    maxRowBytes,
    toleratesLoss,
    blobs,
  }: RowsOptions,
): AsyncGenerator<readonly Row[]> {
  let isLost = false;
  const merge = new Merge({
    blobs,
    inputBlobKey,
    stopReason: batch.stopReason,
    left: endsAtGap ? "end" : "omitted",
    isLastTry: false,
    maxKeptBytes: MAX_KEPT_BYTES,
    maxAheadBytes: MAX_AHEAD_BYTES,
    maxRowBytes,
    onDamaged: () => {
      isLost = true;
    },
  });
  let fromLine = afterLine + 1;
  for await (const { journals, endLine } of windows) {
    // A gap may be before the lines that are wanted.
    for await (const rows of merge.rows(journals, endsAtGap ? 1 : fromLine)) {
      if (isLost && !toleratesLoss) throw new SegmentLost();
      const own = rows.filter(({ lineNumber }) => lineNumber < endLine);
      if (own.length > 0) yield own;
      if (own.length < rows.length) break;
    }
    if (isLost && !toleratesLoss) throw new SegmentLost();
    fromLine = endLine;
  }
}

/**
 * Returns the first line after `afterLine` that may get its row only at the end, because its body came before. Only the first of
 * all such lines is known.
 */
function firstDuplicateAfter({ deduplicated }: Batch, afterLine: number): number | null {
  const firstLine = deduplicated?.firstLine ?? null;
  return firstLine === null ? null : Math.max(firstLine, afterLine);
}

async function* linesOfResults(
  batch: Batch,
  { kind, afterLine, maxRowBytes }: PlacedLinesQuery,
  { store, blobs }: FinishedLinesDeps,
): AsyncGenerator<PlacedLine> {
  const id = kind === "output" ? batch.outputFileId : batch.errorFileId;
  const file = id === null ? null : await store.findFile({ project: batch.project, id });
  if (id !== null && file === null) throw new ResultFileDeleted();
  try {
    yield* placedRows(file, { blobs, afterLine, maxRowBytes });
  } catch (error) {
    // A blob that is gone while its row is there is damaged.
    const isDeleted = isBlobLost(error) && file !== null && (await store.findFile(file)) === null;
    throw isDeleted ? new ResultFileDeleted() : error;
  }
}
