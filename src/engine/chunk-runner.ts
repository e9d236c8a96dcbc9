/**
 * The lines of one chunk → upstream → journal.
 *
 * Lines that the journal holds already are skipped; there is no other recovery. The others are taken on
 * one by one as their route has room, so nothing is read that nobody is free to send, and each ends as
 * a record. A line that was interrupted leaves nothing: no record, no attempt charged.
 *
 * The chunk ends in one of three ways. Closed: every line has its record, or the batch is stopping and
 * the finalizer writes the rows of those that have none. Released: the process is leaving, and
 * whoever claims the chunk next goes on. Abandoned: the lease was lost; nothing is written.
 */
import type { Batch } from "../batch/batch.ts";
import { NO_USAGE } from "../batch/batch.ts";
import { bodyFor, type ParsedLine, parseLine, textOf } from "../batch/line.ts";
import { isSuccess, outcomeLine } from "../batch/outcome.ts";
import { LineSplitter, type SplitLine } from "../batch/split.ts";
import { usageOf } from "../batch/usage.ts";
import type { Blobs } from "../blobs/blobs.ts";
import type { Clock } from "../clock.ts";
import type { Log } from "../log.ts";
import type { ClaimedChunk, Store } from "../store/store.ts";
import type { Route, UpstreamRequest } from "../upstream/upstream.ts";
import { Journal, type JournalLimits, readAnsweredLines } from "./journal.ts";
import type { Run } from "./lease.ts";

export interface ChunkRunnerDeps {
  readonly store: Store;
  readonly blobs: Blobs;
  readonly clock: Clock;
  readonly log: Log;
  readonly journalLimits: JournalLimits;
  /** Journals that cannot be written at the moment. */
  readonly failingJournals: Set<Journal>;
}

export interface ChunkRun {
  readonly claimed: ClaimedChunk;
  readonly route: Route;
  readonly run: Run;
  /** Told once the last line has been taken on, so that the next chunk can be claimed. */
  readonly onAllTaken: () => void;
}

export async function runChunk(chunkRun: ChunkRun, deps: ChunkRunnerDeps): Promise<void> {
  const { claimed, run } = chunkRun;
  const { store, log } = deps;
  const journal = new Journal({
    ...deps,
    limits: deps.journalLimits,
    lease: claimed.lease,
    onLeaseLost: () => run.loseLease(),
    giveUp: run.abort,
  });
  const unanswered = await sendLines(chunkRun, journal, deps);
  if (run.endReason === "lease") {
    journal.abandon();
  } else if (unanswered === 0 || run.endReason === "batch") {
    await journal.close();
  } else {
    await journal.flush();
    await store.releaseChunkIfLeased(claimed.lease);
  }
  const { batchId, chunkNumber } = claimed.lease;
  const fields = { batch: batchId, chunk: chunkNumber, unanswered, ended: run.endReason ?? "done" };
  log.debug(fields, "chunk.ended");
}

/** Resolves to how many lines were left without a record. */
async function sendLines(
  { claimed, route, run, onAllTaken }: ChunkRun,
  journal: Journal,
  deps: ChunkRunnerDeps,
): Promise<number> {
  const open = new Set<Promise<void>>();
  let unanswered = claimed.chunk.lineCount;
  const failures: Error[] = [];
  const settle = async (sending: Promise<boolean>) => {
    try {
      if (await sending) unanswered--;
      route.dismiss();
    } catch (error) {
      failures.push(new Error("a line could not be sent", { cause: error }));
    }
  };
  try {
    const answered = await readAnsweredLines(deps.blobs, claimed.segments);
    unanswered -= answered.size;
    for await (const line of readLines(claimed, deps.blobs)) {
      if (answered.has(line.number)) continue;
      if (run.stop.aborted || failures.length > 0 || !(await route.admit(run.stop))) break;
      const settled = settle(sendLine(line, { claimed, route, run, journal, log: deps.log }));
      open.add(settled);
      void settled.then(() => open.delete(settled));
    }
  } finally {
    onAllTaken();
    await Promise.all(open);
  }
  if (failures[0] !== undefined) throw failures[0];
  return unanswered;
}

async function* readLines({ chunk, inputBlobKey }: ClaimedChunk, blobs: Blobs) {
  for (const { start, end, firstLine } of chunk.extents) {
    const bytes = await blobs.readRange(inputBlobKey, { start, end });
    // Intake has refused overlong lines already.
    const splitter = new LineSplitter(bytes.length, { start, firstLine });
    yield* splitter.push(bytes);
    yield* splitter.end();
  }
}

interface LineContext {
  readonly claimed: ClaimedChunk;
  readonly route: Route;
  readonly run: Run;
  readonly journal: Journal;
  readonly log: Log;
}

/** Resolves to whether the line has its record now. */
async function sendLine(line: SplitLine, context: LineContext): Promise<boolean> {
  const { claimed, route, run, journal, log } = context;
  const { bytes, parsed, customId } = readChecked(line);
  const outcome = await route.send(requestOf(bytes, parsed, claimed.batch), run);
  if (outcome.kind === "interrupted") return false;
  const succeeded = isSuccess(outcome);
  const row = outcomeLine(customId, outcome);
  const usage = succeeded && outcome.kind === "answered" ? usageOf(outcome.body) : NO_USAGE;
  await journal.append({ lineNumber: line.number, succeeded, row }, usage);
  log.debug({ batch: claimed.batch.id, line: line.number, outcome: outcome.kind }, "line.recorded");
  return true;
}

/** A line that intake accepted; that it cannot be read any more means that the blob changed. */
function readChecked(line: SplitLine) {
  const parsed = line.bytes === null ? null : parseLine(line.bytes);
  if (line.bytes === null || parsed === null || parsed.customId === null) {
    throw new Error(`line ${line.number} of the input file is not what was validated`);
  }
  const customId = line.bytes.subarray(parsed.customId.start, parsed.customId.end);
  return { bytes: line.bytes, parsed, customId };
}

function requestOf(bytes: Buffer, parsed: ParsedLine, batch: Batch): UpstreamRequest {
  return {
    endpoint: batch.endpoint,
    model: textOf(bytes, parsed.model) ?? "",
    bodyFor: (upstreamModel) => bodyFor(bytes, parsed, upstreamModel),
    deadlineAtMs: batch.expiresAtMs,
  };
}
