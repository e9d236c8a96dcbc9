/**
 * The lines of one chunk → upstream → journal.
 *
 * Lines that the journal holds already are skipped; there is no other recovery. The others are taken on
 * one by one as their route has room, so nothing is read that nobody is free to send, and each ends as
 * a record. A line that was interrupted leaves nothing: no record, no attempt charged.
 *
 * The chunk ends in one of three ways. Closed: every line has its record, or the batch is stopping and
 * the finalizer writes the rows of those that have none. Released: the process is leaving, or the window has
 * ended and nobody has said so yet; whoever has the chunk next goes on. Abandoned: the lease was lost; nothing is written.
 */
import type { Batch, InputExtent } from "../batch/batch.ts";
import { NO_USAGE } from "../batch/batch.ts";
import { bodyOf, type ParsedLine, parseLine, textOf } from "../batch/line.ts";
import { type FinalOutcome, isSuccess, outcomeLine } from "../batch/outcome.ts";
import { LineSplitter, type SplitLine } from "../batch/split.ts";
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
  chunkRun: ChunkRun,
  journal: Journal,
  { blobs, log }: ChunkRunnerDeps,
): Promise<number> {
  const { chunk, inputBlobKey, segments } = chunkRun.claimed;
  const sending = new Sending(chunkRun, { journal, log });
  let answeredCount = 0;
  try {
    const answered = await readAnsweredLines(blobs, segments);
    answeredCount = answered.size;
    for (const extent of chunk.extents) {
      const bytes = await blobs.readRange(inputBlobKey, extent);
      if (!(await sending.takeOn(linesOf(bytes, extent), answered))) break;
    }
  } finally {
    chunkRun.onAllTaken();
    await sending.settled();
  }
  if (sending.failure !== null) throw sending.failure;
  return chunk.lineCount - answeredCount - sending.recordedCount;
}

/** Intake has refused overlong lines already. */
function* linesOf(bytes: Buffer, { start, firstLine }: InputExtent): Generator<SplitLine> {
  const splitter = new LineSplitter(bytes.length, { start, firstLine });
  yield* splitter.push(bytes);
  yield* splitter.end();
}

/** The lines of a chunk that are under way. Made for tens of thousands of lines a second: one promise each. */
class Sending {
  readonly #batch: Batch;
  readonly #route: Route;
  readonly #run: Run;
  readonly #journal: Journal;
  readonly #log: Log;
  #underWayCount = 0;
  #tellSettled: (() => void) | null = null;
  recordedCount = 0;
  failure: Error | null = null;

  constructor({ claimed, route, run }: ChunkRun, { journal, log }: { journal: Journal; log: Log }) {
    this.#batch = claimed.batch;
    this.#route = route;
    this.#run = run;
    this.#journal = journal;
    this.#log = log;
  }

  /** Sends the lines that are not answered yet, each as soon as there is room. False when the run ends first. */
  async takeOn(lines: Iterable<SplitLine>, answered: ReadonlySet<number>): Promise<boolean> {
    const { stop } = this.#run;
    for (const line of lines) {
      if (answered.has(line.number)) continue;
      if (stop.aborted || this.failure !== null) return false;
      const admitted = this.#route.admit(stop);
      if (admitted !== true && !(await admitted)) return false;
      this.#underWayCount++;
      void this.#send(line);
    }
    return true;
  }

  /** Resolves once none is under way. */
  async settled(): Promise<void> {
    if (this.#underWayCount === 0) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#tellSettled = resolve;
    await promise;
  }

  async #send(line: SplitLine): Promise<void> {
    try {
      const { bytes, parsed, customId } = readChecked(line);
      const request = requestOf(bytes, parsed, this.#batch);
      const outcome = await this.#route.send(request, this.#run);
      if (outcome.kind !== "interrupted") await this.#record(line.number, customId, outcome);
    } catch (cause) {
      this.failure ??= new Error("a line could not be sent", { cause });
    } finally {
      this.#route.dismiss();
      if (--this.#underWayCount === 0) this.#tellSettled?.();
    }
  }

  #record(lineNumber: number, customId: Buffer, outcome: FinalOutcome): Promise<void> | null {
    const succeeded = isSuccess(outcome);
    const row = outcomeLine(customId, outcome);
    const usage = succeeded && outcome.kind === "answered" ? outcome.usage : NO_USAGE;
    this.recordedCount++;
    this.#log.debug({ batch: this.#batch.id, line: lineNumber, outcome: outcome.kind }, RECORDED);
    return this.#journal.append({ lineNumber, succeeded, row }, usage);
  }
}

const RECORDED = "line.recorded";

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
    isModelInBody: true,
    body: bodyOf(bytes, parsed),
    deadlineAtMs: batch.expiresAtMs,
    traceparent: batch.traceparent,
  };
}
