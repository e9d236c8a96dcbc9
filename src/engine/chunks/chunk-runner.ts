/**
 * Runs one chunk: sends its lines to the upstream and writes the outcomes to the journal.
 *
 * The run skips lines that the journal holds already; there is no other recovery. The other lines ask for a slot one
 * by one, so a line is read when the line before it goes out. Each ends as a record. An interrupted line leaves no
 * record, and no attempt is charged for it. A line that cannot be sent at all holds up no other: the run fails after
 * its last line. After several failures without progress (`failure.ts`), the remaining lines get records that say so.
 *
 * The chunk ends in one of five ways:
 * - Closed: every line has its record, or the batch is stopping and the finalizer writes rows for lines without one.
 * - Released: the process drains, the batch is paused, the lines are to go another way, or the window has ended and the
 *   batch is not yet marked. The next holder goes on.
 * - Passed on: this server has no target for the models of some lines any more, and another server has one. It is claimed by
 *   that model from then on.
 * - Kept until its lease runs out: no known target serves the model of some lines any more. A chunk that was released would
 *   come back in a tight loop.
 * - Discarded: the lease was lost, or is left to run out because only other processes can write. The run must then write nothing.
 */
import { noAnswerLine } from "../../batch/outcome.ts";
import type { Blobs } from "../../blobs/blobs.ts";
import type { MemoryBudget } from "../../resources/memory-budget.ts";
import type { Store } from "../../store/store.ts";
import type { Metrics } from "../../telemetry/metrics.ts";
import { during, type Tracing } from "../../telemetry/tracing.ts";
import type { Fleet } from "../fleet/fleet.ts";
import { Journal, type JournalLimits } from "../journal/journal.ts";
import type { JournalHealth } from "../journal/journal-health.ts";
import type { Pricing } from "../journal/pricing.ts";
import { readSegment } from "../journal/segment.ts";
import { doubted } from "../steps/doubted-blobs.ts";
import { GIVEN_UP, MAX_FAILURES, unreadableLine } from "../steps/failure.ts";
import { findLeftLines, linesOfExtents } from "./chunk-input.ts";
import { ChunkTrace } from "./chunk-trace.ts";
import type { CommonFailures } from "./common-failures.ts";
import { type ChunkRun, Sending } from "./sending.ts";
import { isBounded, type MeterDeps, meterFor } from "./spending-meter.ts";

export interface ChunkRunnerDeps extends MeterDeps {
  readonly store: Store;
  readonly blobs: Blobs;
  readonly metrics: Metrics;
  readonly tracing: Tracing;
  readonly journalLimits: JournalLimits;
  readonly pricing: Pricing;
  readonly memory: MemoryBudget;
  readonly health: JournalHealth;
  readonly commonFailures: CommonFailures;
  readonly fleet: Pick<Fleet, "storeClock">;
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

/** Works through the chunk and resolves to how it ended. */
async function workThrough(chunkRun: ChunkRun, trace: ChunkTrace, deps: ChunkRunnerDeps) {
  const { claimed, run } = chunkRun;
  const { store, metrics } = deps;
  const journal = new Journal({
    ...deps,
    // An answer counts on the day that the quotas of the store go by.
    clock: deps.fleet.storeClock,
    limits: deps.journalLimits,
    lease: claimed.lease,
    labels: { model: claimed.chunk.model, project: claimed.batch.project },
    onLeaseLost: () => run.loseLease(),
    onWrite: (succeeded) => run.watch.journalWrote(succeeded),
    abort: run.abort,
  });
  const { unanswered, unserved } = await sendLines(chunkRun, { journal, trace }, deps);
  if (run.endReason === "lease") {
    journal.discard();
  } else if (unanswered === 0 || run.endReason === "batch") {
    await journal.close();
  } else {
    await journal.flush();
    assertTaken(journal);
    const isKept = unserved.size > 0 && run.endReason === null;
    const model = isKept ? [...unserved].find(chunkRun.isServedElsewhere) : undefined;
    const isGivenBack = !isKept || model !== undefined;
    const isReleased = isGivenBack && (await store.releaseChunkIfLeased(claimed.lease, model));
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

/** Resolves to the number of lines without a record, and the models without an upstream. */
async function sendLines(chunkRun: ChunkRun, parts: RunParts, deps: ChunkRunnerDeps) {
  const { claimed, run } = chunkRun;
  const { chunk, inputBlobKey: key } = claimed;
  const { blobs } = deps;
  const meter = meterFor({ claimed, run, flush: () => parts.journal.flush() }, deps);
  // A quota may come while the chunk runs. The chunk is claimed anew then, with a meter.
  const endForMeter = () => {
    if (meter !== null || !isBounded(claimed.batch, deps)) return false;
    run.end("reroute", null, deps.clock);
    return true;
  };
  const sending = new Sending(chunkRun, { ...parts, ...deps, meter, endForMeter });
  let recordedCount = 0;
  try {
    const { answered, isGivenUp } = await readJournal(chunkRun, deps);
    recordedCount = answered.size;
    if (isGivenUp) recordedCount += await recordLeft(chunkRun, answered, { ...parts, ...deps });
    else {
      for await (const lines of linesOfExtents({ blobs, key }, chunk.extents)) {
        if (!(await sending.takeOn(lines, answered))) break;
      }
    }
  } finally {
    chunkRun.handOut.end();
    await sending.settled();
    run.watch.linesEnded();
    meter?.close();
  }
  if (sending.failure !== null) {
    // The records of the other lines are kept, and count as progress.
    await parts.journal.flush();
    throw sending.failure;
  }
  const unanswered = chunk.lineCount - recordedCount - sending.recordedCount;
  return { unanswered, unserved: sending.unserved };
}

/**
 * Reads the numbers of the lines that the journal holds, and whether the other lines have failed too often.
 * Unreadable segments are discarded, which makes a new beginning: their lines are sent again.
 */
async function readJournal({ claimed, run }: ChunkRun, { store, blobs, log }: ChunkRunnerDeps) {
  const isLastTry = claimed.failureCount >= MAX_FAILURES;
  const reader = doubted(blobs, claimed.failureCount);
  const answered = new Set<number>();
  const lost: { readonly blob: string; readonly problem: string }[] = [];
  for (const segment of claimed.segments) {
    const reading = await readSegment(segment, { blobs: reader, isLastTry });
    if (reading.ok) for (const { lineNumber } of reading.records) answered.add(lineNumber);
    else lost.push({ blob: segment.blobKey, problem: reading.problem });
  }
  const { batchId: batch, chunkNumber: chunk } = claimed.lease;
  const keys = lost.map(({ blob }) => blob);
  if (lost.length === 0 || (await store.removeSegmentsIfLeased(claimed.lease, keys))) {
    // Without the lease, the sweep may have removed the journal of a deleted batch.
    for (const damage of lost) log.error({ batch, chunk, ...damage }, "journal.damaged");
  } else run.loseLease();
  return { answered, isGivenUp: isLastTry && lost.length === 0 };
}

/** Records the lines that failed in every try so far; resolves to their number. */
async function recordLeft(
  { claimed, run, onRecorded }: ChunkRun,
  answered: ReadonlySet<number>,
  { journal, blobs, log }: RunParts & ChunkRunnerDeps,
): Promise<number> {
  const { chunk, inputBlobKey: key, failureCount } = claimed;
  const left = await findLeftLines(chunk, answered, { blobs, key, isLastTry: true });
  const { batchId: batch, number } = chunk;
  log.error({ batch, chunk: number, lines: left.length, failures: failureCount }, "chunk.given_up");
  let recordedCount = 0;
  for (const { number: lineNumber, customId } of left) {
    if (run.stop.aborted) break;
    const error = customId === null ? unreadableLine(lineNumber) : GIVEN_UP;
    const row = [noAnswerLine({ lineNumber, customId }, error)];
    const failure = { status: null, code: error.code };
    await journal.append({ lineNumber, succeeded: false, failure, row, answer: null });
    onRecorded();
    recordedCount++;
  }
  return recordedCount;
}
