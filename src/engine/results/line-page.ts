/**
 * Reads one page of the lines of a batch, each with its question and its answer, while the batch runs and afterwards.
 *
 * A page is bounded in lines, in bytes and in what is read for it, however large the batch and however rare the wanted
 * lines are. A page that ends early says so, and the next one goes on behind the last line that was looked at. The marks
 * of the batch lead to a place shortly before any line of the input. Its memory is reserved before it is read: a row may have
 * 64 MB, and a line of the input 256 MB.
 */
import type { Readable } from "node:stream";
import type { Batch } from "../../batch/batch.ts";
import type { BatchLine, LinePage, LineQuery } from "../../batch/batch-line.ts";
import { ResultFileDeleted, type ResultKind } from "../../batch/finished-line.ts";
import { rowParts } from "../../batch/outcome.ts";
import { isFinal } from "../../batch/status.ts";
import type { BlobReader, ByteRange } from "../../blobs/blobs.ts";
import { timeForMore } from "../../resources/time-slice.ts";
import { skipSpace } from "../../text/json-tokens.ts";
import type { SplitLine } from "../../text/split.ts";
import { parsedLine } from "../chunks/parsed-line.ts";
import { isLost } from "../journal/segment.ts";
import { type FinishedLinesDeps, MAX_PASSED_ROW_BYTES, placedLines } from "./finished-lines.ts";
import { InputWalk } from "./input-walk.ts";
import { inLineOrder, type PlacedLine, rowBytes, wholeLine } from "./result-rows.ts";

/** The bytes of a page. A page has one line at least. */
const MAX_PAGE_BYTES = 4 * 1024 * 1024;
/** The bytes of inputs and rows that are read for one page, to the end of a line. */
const MAX_READ_BYTES = 16 * 1024 * 1024;
/**
 * A read from the journal counts as so many bytes at least. Where a batch has many routes, little of each chunk can be kept in
 * memory, so every row is a read of its own, and 16 MiB of small rows would take seconds.
 */
const READ_COST_BYTES = 8 * 1024;

interface FoundLine extends PlacedLine {
  readonly kind: ResultKind;
}

export interface LinePageDeps extends FinishedLinesDeps {
  /** It is called with the length of bytes before they are kept, and throws when there is no room for them. */
  readonly reserve: (bytes: number) => void;
}

/** Reads a page again when a file was deleted meanwhile. Where the store still knows the file, the blob is damaged. */
export async function readLinePage(
  batch: Batch,
  query: LineQuery,
  deps: LinePageDeps,
): Promise<LinePage> {
  try {
    return await readPage(batch, query, deps);
  } catch (error) {
    if (!isLost(error)) throw error;
    return readPage(batch, query, deps);
  }
}

/** A batch that has not started has no lines yet. */
async function readPage(batch: Batch, query: LineQuery, deps: LinePageDeps): Promise<LinePage> {
  const blobs = new MeteredBlobs(deps.blobs);
  const page = new Page(query, { blobs, reserve: deps.reserve });
  if (batch.inProgressAtMs === null) return page.end(false);
  const { source, project, lineMarks } = batch;
  const id = source?.merge?.inputFileId ?? batch.inputFileId;
  const file = await deps.store.findFile({ project, id });
  const rows = rowsFor(batch, query, { ...deps, blobs });
  await using input = file === null ? null : new InputWalk(file, lineMarks, deps.blobs);
  try {
    const isByRow = query.status === "failed" || query.status === "succeeded" || input === null;
    const hasMore = isByRow
      ? await addRows(page, { rows, input, blobs: deps.blobs })
      : await addLines(page, { rows, input, isFinal: isFinal(batch.status), blobs: deps.blobs });
    return page.end(hasMore);
  } finally {
    await rows.return(undefined);
  }
}

/** Yields the rows of the wanted kinds, in the order of their lines. */
function rowsFor(
  batch: Batch,
  { status, afterLine }: LineQuery,
  deps: FinishedLinesDeps,
): AsyncGenerator<FoundLine> {
  async function* rowsOf(kind: ResultKind): AsyncGenerator<FoundLine> {
    try {
      const rows = { kind, afterLine, maxRowBytes: MAX_PASSED_ROW_BYTES };
      for await (const line of placedLines(batch, rows, deps)) yield { ...line, kind };
    } catch (error) {
      // The lines of the other file are still to be seen.
      if (!(error instanceof ResultFileDeleted)) throw error;
    }
  }
  if (status === "failed") return rowsOf("error");
  if (status === "succeeded") return rowsOf("output");
  return inLineOrder(rowsOf("output"), rowsOf("error"));
}

interface Walk {
  readonly rows: AsyncGenerator<FoundLine>;
  readonly input: InputWalk;
  readonly blobs: BlobReader;
}

/** Adds the lines that have a row. Resolves to whether there may be more. */
async function addRows(
  page: Page,
  { rows, input, blobs }: Omit<Walk, "input"> & { readonly input: InputWalk | null },
): Promise<boolean> {
  for await (const row of rows) {
    const next = (await input?.findFrom(row.number)) ?? null;
    const line = next?.number === row.number ? next : null;
    if (!page.makeRoomFor(line, row)) return true;
    const request = line === null ? null : ((await input?.bytesOf(line)) ?? null);
    if (!page.add(await answeredLine(row, { request, blobs }))) return true;
    if (page.hasRead(row.number, rowBytes(row.row) + (input?.takeReadBytes() ?? 0))) return true;
    await timeForMore();
  }
  return false;
}

/** Adds every line of the input, with its row where it has one. Resolves to whether there may be more. */
async function addLines(
  page: Page,
  { rows, input, isFinal, blobs }: Walk & { readonly isFinal: boolean },
): Promise<boolean> {
  let next = await rows.next();
  for (;;) {
    const line = await input.findFrom(page.lastLine + 1);
    if (line === null) return false;
    while (next.done !== true && next.value.number < line.number) next = await rows.next();
    const row = next.done !== true && next.value.number === line.number ? next.value : null;
    // A line of an ended batch always has a row, unless its file was deleted.
    const isShown = row === null ? !isFinal : page.wants(row.kind);
    if (isShown) {
      if (!page.makeRoomFor(line, row)) return true;
      const request = await input.bytesOf(line);
      const found =
        row === null
          ? await waitingLine(line.number, request)
          : await answeredLine(row, { request, blobs });
      if (found !== null && !page.add(found)) return true;
    }
    const readBytes = (row === null ? 0 : rowBytes(row.row)) + input.takeReadBytes();
    if (page.hasRead(line.number, readBytes)) return true;
    await timeForMore();
  }
}

const STATUS = { output: "succeeded", error: "failed" } as const;

async function answeredLine(
  { kind, ...placed }: FoundLine,
  { request, blobs }: { readonly request: Buffer | null; readonly blobs: BlobReader },
): Promise<BatchLine> {
  const { number, row } = await wholeLine(placed, blobs);
  const parts = rowParts(row);
  return {
    number,
    status: STATUS[kind],
    customId: parts?.customId ?? null,
    request,
    response: parts?.response ?? null,
    error: parts?.error ?? null,
  };
}

/** Resolves to null for a blank line. */
async function waitingLine(number: number, bytes: Buffer): Promise<BatchLine | null> {
  if (skipSpace(bytes, 0, bytes.length) === bytes.length) return null;
  const parsed = await parsedLine(bytes);
  const extent = parsed?.customId ?? null;
  const customId = extent === null ? null : bytes.subarray(extent.start, extent.end);
  const request = parsed === null ? null : bytes;
  return { number, status: "waiting", customId, request, response: null, error: null };
}

/** Gathers the lines of a page within its bounds. */
class Page {
  readonly #query: LineQuery;
  readonly #blobs: MeteredBlobs;
  readonly #lines: BatchLine[] = [];
  readonly #reserve: (bytes: number) => void;
  #bytes = 0;
  #reservedBytes = 0;
  #readBytes = 0;
  /** The number of the last line that was looked at. */
  lastLine: number;

  constructor(
    query: LineQuery,
    { blobs, reserve }: Pick<LinePageDeps, "reserve"> & { readonly blobs: MeteredBlobs },
  ) {
    this.#query = query;
    this.#blobs = blobs;
    this.#reserve = reserve;
    this.lastLine = query.afterLine;
  }

  /** Returns whether lines with rows of a kind are wanted. */
  wants(kind: ResultKind): boolean {
    const { status } = this.#query;
    return status === null || status === STATUS[kind];
  }

  /** Reserves memory for a line before it is read. Returns false for a long line that does not fit in the page. */
  makeRoomFor(line: SplitLine | null, row: FoundLine | null): boolean {
    const bytes =
      (line === null ? 0 : line.end - line.start) + (row === null ? 0 : rowBytes(row.row));
    if (bytes > MAX_PASSED_ROW_BYTES && this.#lines.length > 0 && !this.#fits(bytes)) return false;
    const lackingBytes = this.#bytes + bytes - this.#reservedBytes;
    if (lackingBytes > 0) {
      this.#reservedBytes += lackingBytes;
      this.#reserve(lackingBytes);
    }
    return true;
  }

  #fits(bytes: number): boolean {
    return this.#lines.length < this.#query.limit && this.#bytes + bytes <= MAX_PAGE_BYTES;
  }

  /** Adds a line if it is wanted. Returns false when there is no room for it. */
  add(line: BatchLine): boolean {
    const { status, customId } = this.#query;
    if (status !== null && line.status !== status) return true;
    if (customId !== null && textOf(line.customId) !== customId) return true;
    const bytes = (line.request?.length ?? 0) + (line.response?.length ?? 0);
    if (this.#lines.length > 0 && !this.#fits(bytes)) return false;
    this.#lines.push(line);
    this.#bytes += bytes;
    return true;
  }

  /** Notes a line that was looked at. Returns whether enough was read. */
  hasRead(number: number, bytes: number): boolean {
    this.lastLine = number;
    this.#readBytes += bytes;
    return this.#readBytes + this.#blobs.cost > MAX_READ_BYTES;
  }

  end(hasMore: boolean): LinePage {
    return { lines: this.#lines, hasMore, lastLine: this.lastLine };
  }
}

/** Counts what the reads of ranges cost, in bytes. */
class MeteredBlobs implements BlobReader {
  readonly maxReadsAhead: number;
  readonly #blobs: BlobReader;
  cost = 0;

  constructor(blobs: BlobReader) {
    this.#blobs = blobs;
    this.maxReadsAhead = blobs.maxReadsAhead;
  }

  read(key: string, range?: ByteRange): Readable {
    return this.#blobs.read(key, range);
  }

  readRange(key: string, range: ByteRange): Promise<Buffer> {
    this.cost += Math.max(range.end - range.start, READ_COST_BYTES);
    return this.#blobs.readRange(key, range);
  }
}

const textOf = (json: Buffer | null): string | null =>
  json === null ? null : (JSON.parse(json.toString()) as string | null);
