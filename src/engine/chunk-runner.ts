/**
 * The lines of one chunk → upstream → journal.
 *
 * Lines that the journal holds already are skipped; there is no other recovery. The others are taken on
 * one by one as their turn comes (`turns.ts`), so nothing is read that nobody is free to send, and each ends as
 * a record. A line that was interrupted leaves nothing: no record, no attempt charged. A line that cannot be sent at all
 * holds up no other: the run fails after the last one, and after some failures without progress (`failure.ts`)
 * the lines that are left get records that say so.
 *
 * The chunk ends in one of four ways. Closed: every line has its record, or the batch is stopping and
 * the finalizer writes the rows of those that have none. Released: the process is leaving, its lines are to go another
 * way, or the window has ended and nobody has said so yet; whoever has the chunk next goes on. Left: nothing serves the
 * model of some lines any more; the lease runs out, so that the chunk does not come back in a tight loop. Abandoned: the
 * lease was lost; nothing is written.
 */
import { type Batch, NO_USAGE } from "../batch/batch.ts";
import { bodyOf, leavesModelOpen, type ParsedLine, textOf } from "../batch/line.ts";
import {
  type FinalOutcome,
  isSuccess,
  noAnswerLine,
  type Outcome,
  outcomeLine,
} from "../batch/outcome.ts";
import type { SplitLine } from "../batch/split.ts";
import type { Blobs } from "../blobs/blobs.ts";
import type { Clock } from "../clock.ts";
import type { Log } from "../log.ts";
import type { MemoryBudget, Room } from "../memory-budget.ts";
import type { Metrics } from "../metrics.ts";
import type { ClaimedChunk, Store } from "../store/store.ts";
import { during, endingOf, NO_SPAN, type Tracing } from "../tracing.ts";
import type { Route, UpstreamRequest } from "../upstream/upstream.ts";
import { findLeftLines, readLines } from "./chunk-input.ts";
import { ChunkTrace } from "./chunk-trace.ts";
import type { CommonFailures } from "./common-failures.ts";
import { GIVEN_UP, MAX_FAILURES, unreadableLine } from "./failure.ts";
import { Journal, type JournalLimits } from "./journal.ts";
import type { Run } from "./lease.ts";
import { parsedLine } from "./parsed-line.ts";
import { readSegment } from "./segment.ts";

export interface ChunkRunnerDeps {
  readonly store: Store;
  readonly blobs: Blobs;
  readonly clock: Clock;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly tracing: Tracing;
  readonly journalLimits: JournalLimits;
  readonly memory: MemoryBudget;
  /** Journals that cannot be written at the moment. */
  readonly failingJournals: Set<Journal>;
  readonly commonFailures: CommonFailures;
}

export interface ChunkRun {
  readonly claimed: ClaimedChunk;
  readonly route: Route;
  /** Of one of its models, as it may have moved since the file was read; null when nothing serves it any more. */
  readonly routeOf: (model: string) => Route | null;
  readonly run: Run;
  /** Asked for each line, one after the other, before it goes out: true once it may. */
  readonly admit: () => boolean | Promise<boolean>;
  /** Told of each line that has its outcome. */
  readonly onRecorded: () => void;
  /** Told once no more lines are taken on, so that the next chunk can be claimed. */
  readonly onAllTaken: () => void;
}

export async function runChunk(chunkRun: ChunkRun, deps: ChunkRunnerDeps): Promise<void> {
  const trace = new ChunkTrace(deps.tracing, chunkRun.claimed);
  const { batchId: batch, chunkNumber: chunk } = chunkRun.claimed.lease;
  const { unanswered, ended } = await during(
    trace.span,
    () => workThrough(chunkRun, trace, deps),
    (end) => ({ "batchd.chunk.unanswered": end.unanswered, "batchd.chunk.ended": end.ended }),
  );
  deps.log.debug({ batch, chunk, unanswered, ended }, "chunk.ended");
}

/** Resolves to how it has ended. */
async function workThrough(chunkRun: ChunkRun, trace: ChunkTrace, deps: ChunkRunnerDeps) {
  const { claimed, run } = chunkRun;
  const { store, metrics } = deps;
  const journal = new Journal({
    ...deps,
    limits: deps.journalLimits,
    lease: claimed.lease,
    labels: { model: claimed.chunk.route, project: claimed.batch.project },
    onLeaseLost: () => run.loseLease(),
    giveUp: run.abort,
  });
  const { unanswered, isAnyUnserved } = await sendLines(chunkRun, { journal, trace }, deps);
  if (run.endReason === "lease") {
    journal.abandon();
  } else if (unanswered === 0 || run.endReason === "batch") {
    await journal.close();
  } else {
    await journal.flush();
    assertTaken(journal);
    const isLeft = isAnyUnserved && run.endReason === null;
    const isReleased = !isLeft && (await store.releaseChunkIfLeased(claimed.lease));
    if (isReleased) metrics.leaseChanged("chunk", "released");
  }
  assertTaken(journal);
  return { unanswered, ended: run.endReason ?? "done" };
}

function assertTaken({ refusal: cause }: Journal): void {
  if (cause !== null) throw new Error("the store refuses the answers of the chunk", { cause });
}

interface RunParts {
  readonly journal: Journal;
  readonly trace: ChunkTrace;
}

type SendingParts = RunParts & Pick<ChunkRunnerDeps, "log" | "memory" | "commonFailures">;

/** Resolves to how many lines were left without a record, and whether for want of an upstream. */
async function sendLines(chunkRun: ChunkRun, parts: RunParts, deps: ChunkRunnerDeps) {
  const { chunk, inputBlobKey: key } = chunkRun.claimed;
  const { blobs } = deps;
  const sending = new Sending(chunkRun, { ...parts, ...deps });
  let recordedCount = 0;
  try {
    const { answered, isGivenUp } = await readJournal(chunkRun, deps);
    recordedCount = answered.size;
    if (isGivenUp) recordedCount += await recordLeft(chunkRun, answered, { ...parts, ...deps });
    else {
      for await (const lines of readLines({ blobs, key }, chunk.extents)) {
        if (!(await sending.takeOn(lines, answered))) break;
      }
    }
  } finally {
    chunkRun.onAllTaken();
    await sending.settled();
  }
  if (sending.failure !== null) {
    // What the other lines of the chunk have achieved is kept, and counts as progress.
    await parts.journal.flush();
    throw sending.failure;
  }
  const unanswered = chunk.lineCount - recordedCount - sending.recordedCount;
  return { unanswered, isAnyUnserved: sending.isAnyUnserved };
}

/**
 * The numbers of the lines that the journal holds, and whether the others are to be given up. Segments that cannot be
 * read are taken out of it, which makes a new beginning: their lines are sent again.
 */
async function readJournal({ claimed, run }: ChunkRun, { store, blobs, log }: ChunkRunnerDeps) {
  const isLastTry = claimed.failureCount >= MAX_FAILURES;
  const answered = new Set<number>();
  const lost: string[] = [];
  for (const segment of claimed.segments) {
    const reading = await readSegment(segment, { blobs, isLastTry });
    if (reading.ok) for (const { lineNumber } of reading.records) answered.add(lineNumber);
    else {
      lost.push(segment.blobKey);
      const { batchId: batch, chunkNumber: chunk } = claimed.lease;
      const { problem } = reading;
      log.error({ batch, chunk, blob: segment.blobKey, problem }, "journal.damaged");
    }
  }
  if (lost.length > 0 && !(await store.dropSegmentsIfLeased(claimed.lease, lost))) run.loseLease();
  return { answered, isGivenUp: isLastTry && lost.length === 0 };
}

/** Records for lines that failed in every try so far; resolves to how many there are. */
async function recordLeft(
  { claimed, run, onRecorded }: ChunkRun,
  answered: ReadonlySet<number>,
  { journal, blobs, log }: RunParts & ChunkRunnerDeps,
): Promise<number> {
  const { chunk, inputBlobKey: key, failureCount } = claimed;
  const left = await findLeftLines(chunk, answered, { blobs, key, isLastTry: true });
  const { batchId: batch, number } = chunk;
  log.error({ batch, chunk: number, lines: left.length, failureCount }, "chunk.given_up");
  let recordedCount = 0;
  for (const { number: lineNumber, customId } of left) {
    if (run.stop.aborted) break;
    const error = customId === null ? unreadableLine(lineNumber) : GIVEN_UP;
    const row = [noAnswerLine(customId, error)];
    await journal.append({ lineNumber, succeeded: false, row }, NO_USAGE);
    onRecorded();
    recordedCount++;
  }
  return recordedCount;
}

/** The lines of a chunk that are under way. Made for tens of thousands of lines a second: one promise each. */
class Sending {
  readonly #chunkRun: ChunkRun;
  readonly #journal: Journal;
  readonly #trace: ChunkTrace;
  readonly #log: Log;
  readonly #commonFailures: CommonFailures;
  readonly #memory: MemoryBudget;
  #underWayCount = 0;
  #tellSettled: (() => void) | null = null;
  recordedCount = 0;
  isAnyUnserved = false;
  failure: Error | null = null;

  constructor(chunkRun: ChunkRun, parts: SendingParts) {
    const { journal, trace, log, memory, commonFailures } = parts;
    this.#chunkRun = chunkRun;
    this.#journal = journal;
    this.#trace = trace;
    this.#log = log;
    this.#commonFailures = commonFailures;
    this.#memory = memory;
  }

  /** Sends the lines that are not answered yet, each as soon as there is room. False when the run ends first. */
  async takeOn(lines: Iterable<SplitLine>, answered: ReadonlySet<number>): Promise<boolean> {
    const { admit, run } = this.#chunkRun;
    for (const line of lines) {
      if (answered.has(line.number)) continue;
      if (run.stop.aborted) return false;
      for (let held = this.#held(); held !== null; held = this.#held()) await held;
      const admitted = admit();
      if (admitted !== true && !(await admitted)) return false;
      this.#underWayCount++;
      void this.#send(line);
    }
    return true;
  }

  /** A chunk of lines that every target refuses keeps them: they need no memory of their own, and no place. */
  #held(): Promise<void> | null {
    const { claimed, route, run } = this.#chunkRun;
    if (run.stop.aborted) return null;
    const { project, endpoint } = claimed.batch;
    return route.held({ project, endpoint, model: claimed.chunk.route }, run.stop);
  }

  /** Resolves once none is under way. */
  async settled(): Promise<void> {
    if (this.#underWayCount === 0) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#tellSettled = resolve;
    await promise;
  }

  async #send(line: SplitLine): Promise<void> {
    const { claimed, route, routeOf, run } = this.#chunkRun;
    const span = this.#trace.startLine(line.number);
    const room = this.#memory.open("answers", claimed.batch.project);
    let hasPlace = true;
    let isKept = false;
    try {
      const read = line.bytes === null ? null : parsedLine(line.bytes);
      const { bytes, parsed, customId } = checked(
        line,
        read instanceof Promise ? await read : read,
      );
      const traceparent = this.#trace.traceparentOf(span);
      const request = requestOf({ bytes, parsed, traceparent, room }, claimed.batch);
      const ownRoute = routeOf(request.model);
      if (ownRoute !== route) {
        // Whatever it waits for now, it must not keep a place here.
        hasPlace = false;
        route.dismiss();
      }
      if (ownRoute === null) this.isAnyUnserved = true;
      const outcome = (await ownRoute?.send(request, run)) ?? INTERRUPTED;
      if (span !== NO_SPAN) span.end(endingOf(outcome));
      if (outcome.kind !== "interrupted") {
        isKept = true;
        await this.#record({ lineNumber: line.number, customId, room }, outcome);
      }
    } catch (cause) {
      this.failure ??= new Error("a line could not be sent", { cause });
    } finally {
      if (!isKept) room.release();
      if (hasPlace) route.dismiss();
      if (--this.#underWayCount === 0) this.#tellSettled?.();
    }
  }

  /** The journal has the room of the answer from then on. */
  #record(
    { lineNumber, customId, room }: AnsweredLine,
    outcome: FinalOutcome,
  ): Promise<void> | null {
    const succeeded = isSuccess(outcome);
    this.#commonFailures.note(this.#chunkRun.claimed.batch, outcome);
    const row = outcomeLine(customId, outcome);
    const usage = succeeded && outcome.kind === "answered" ? outcome.usage : NO_USAGE;
    const { lease } = this.#chunkRun.claimed;
    this.recordedCount++;
    this.#chunkRun.onRecorded();
    const upstreamRequestId = "requestId" in outcome ? outcome.requestId : null;
    const { batchId: batch, chunkNumber: chunk } = lease;
    const { kind } = outcome;
    this.#log.debug({ batch, chunk, line: lineNumber, outcome: kind, upstreamRequestId }, RECORDED);
    return this.#journal.append({ lineNumber, succeeded, row, room }, usage);
  }
}

const RECORDED = "line.recorded";
const INTERRUPTED: Outcome = { kind: "interrupted" };

/** A line that intake accepted; that it cannot be read any more means that the blob changed. */
function checked(line: SplitLine, parsed: ParsedLine | null) {
  if (line.bytes === null || parsed === null || parsed.customId === null) {
    throw new Error(`line ${line.number} of the input file is not what was validated`);
  }
  const customId = line.bytes.subarray(parsed.customId.start, parsed.customId.end);
  return { bytes: line.bytes, parsed, customId };
}

interface AnsweredLine {
  readonly lineNumber: number;
  readonly customId: Buffer;
  readonly room: Room;
}

interface SentLine {
  readonly bytes: Buffer;
  readonly parsed: ParsedLine;
  readonly traceparent: string | null;
  readonly room: Room;
}

function requestOf({ bytes, parsed, traceparent, room }: SentLine, batch: Batch): UpstreamRequest {
  const isModelInBody = !leavesModelOpen(bytes, parsed);
  const model = isModelInBody ? textOf(bytes, parsed.model) : batch.defaultModel;
  return {
    project: batch.project,
    endpoint: batch.endpoint,
    model: model ?? "",
    isModelInBody,
    body: bodyOf(bytes, parsed),
    deadlineAtMs: batch.expiresAtMs,
    room,
    traceparent,
  };
}
