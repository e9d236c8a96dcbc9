/**
 * The last step of a batch: the journals become the output file and the error file, and the batch gets its final
 * status.
 *
 * Both blobs are written first, under the ids of the files to be. Then one commit, guarded by the lease, publishes
 * the files and the status. A crash before the commit leaves two blobs without rows, which the sweeper removes. The
 * next holder of the lease writes them again from the same journals.
 *
 * Every batch must get to its end. Lines with unreadable answers are sent again while the window lasts, which takes
 * the batch back to `in_progress`. After that they get rows in the error file. A failed finalization is tried again.
 * After `MAX_FAILURES` of them all unreadable data counts as lost, and after twice as many the batch ends without
 * results. The finalizer waits for a full disk or a locked database, however long that takes.
 */
import { type Batch, newFileId } from "../../batch/batch.ts";
import type { RulesOf } from "../../batch/project.ts";
import type { BlobIntents } from "../../blobs/blob-intents.ts";
import { sleep } from "../../clock.ts";
import type { EventType } from "../../contract/event.ts";
import type { BatchResult, IncompleteChunk, ResultFiles } from "../../store/finalizing.ts";
import type { ClaimedBatch } from "../../store/leases.ts";
import type { ProjectTurn } from "../../store/project-turns.ts";
import type { Store } from "../../store/store.ts";
import type { Attributes } from "../../telemetry/tracing.ts";
import type { Fleet } from "../fleet/fleet.ts";
import { type BatchStepDeps, runStep } from "../steps/batch-run.ts";
import { doubted } from "../steps/doubted-blobs.ts";
import { isPassing, MAX_FAILURES } from "../steps/failure.ts";
import type { Run } from "../steps/lease.ts";
import type { Work } from "../steps/side-by-side.ts";
import { BatchResults, type ResultIds } from "./batch-results.ts";
import { type DuplicateRowsDeps, withDuplicates } from "./duplicate-rows.ts";
import { Merge, NO_SUCH_BLOB } from "./merge.ts";
import { KeptRows } from "./merged-lines.ts";
import type { ResultSummaryDeps } from "./result-summary.ts";
import { resultBlobKey } from "./result-writer.ts";

/** The lifetime of result files, 30 days, unless the client chose otherwise. */
const RESULT_LIFETIME_SECONDS = 30 * 24 * 60 * 60;

export interface FinalizerDeps
  extends BatchStepDeps,
    ResultSummaryDeps,
    Pick<DuplicateRowsDeps, "maxDuplicateBytes"> {
  readonly store: Store;
  readonly intents: BlobIntents;
  readonly fleet: Pick<Fleet, "nowMs" | "workers">;
  /** The callback for lines of a batch that have to be sent again. */
  readonly onReopened: () => void;
}

/** The wait before results that could not be published are tried again. */
const COMMIT_RETRY_MS = 1_000;

/** Claims one batch whose chunks are all closed, and returns its finalization; null when there is none. */
export async function claimToFinalize(
  turn: ProjectTurn,
  deps: FinalizerDeps,
): Promise<Work | null> {
  const { store, leases } = deps;
  const claimed = await store.claimBatchToFinalize(await leases.claim(), turn);
  if (claimed === null) return null;
  const work = (run: Run) => finalize(claimed, run, deps);
  const describe = (end: Attributes | null) => end ?? {};
  const run = () => runStep(claimed, { name: "batch.finalize", work, describe }, deps);
  return { project: claimed.batch.project, run };
}

/** Resolves to how the batch has ended; null when this run was not to end it. */
async function finalize(
  claimed: ClaimedBatch,
  run: Run,
  deps: FinalizerDeps,
): Promise<Attributes | null> {
  if (claimed.failureCount >= 2 * MAX_FAILURES) return endWithoutResults(claimed, deps);
  const ids = { output: newFileId(), error: newFileId() };
  const blobKeys = [resultBlobKey(ids.output), resultBlobKey(ids.error)];
  const files = await deps.intents.during(blobKeys, async () => {
    const toWrite = { ...claimed, ids, damages: [] };
    const result = await writeResults(toWrite, run, deps);
    return result !== null && (await publish(toWrite, result, { ...deps, run })) ? result : null;
  });
  return files === null ? null : announceEnd(claimed.batch, files, deps);
}

/**
 * Tries again while the store is away, so that the results need not be written again. Returns false when the lease
 * was lost.
 */
async function publish(
  toWrite: ToWrite,
  results: Results,
  deps: FinalizerDeps & { readonly run: Run },
): Promise<boolean> {
  const { store, clock, log, announcementsFor, storageWaits, run } = deps;
  const { lease, batch } = toWrite;
  const result = { ...results, announcements: announcementsFor(batch) };
  for (;;) {
    try {
      const isPublished = await store.finishBatchIfLeased(lease, result);
      // Without this the loss would be counted nowhere: the lease is released before its next renewal.
      if (isPublished) logDamages(toWrite, deps);
      else run.loseLease();
      return isPublished;
    } catch (err) {
      if (!isPassing(err) || run.stop.aborted) throw err;
      log.error({ batch: batch.id, err }, "results.commit_failed");
      storageWaits.noteStep(batch, err);
      await sleep(clock, COMMIT_RETRY_MS, run.stop);
    }
  }
}

/** Ends a batch after many failures. The last of them treated all unreadable data as lost. */
async function endWithoutResults(
  { lease, batch }: ClaimedBatch,
  deps: FinalizerDeps,
): Promise<Attributes | null> {
  const { store, log, announcementsFor } = deps;
  const message = "The server failed to write the results of this batch in several tries.";
  const faults = [{ code: "internal_error", message, param: null, line: null }] as const;
  const failure = { faults, announcements: announcementsFor(batch) };
  if (!(await store.endWithoutResultsIfLeased(lease, failure))) return null;
  log.error({ batch: batch.id }, "batch.given_up");
  return announceEnd(batch, { output: null, error: null }, deps);
}

async function announceEnd(
  batch: Batch,
  { output, error }: ResultFiles,
  { store, clock, log, metrics, onFinal }: FinalizerDeps,
): Promise<Attributes> {
  metrics.leaseChanged("batch", "closed");
  onFinal();
  // The batch may have been cancelled since it was claimed, and deleted since it ended.
  const ended = await store.findBatch(batch);
  if (ended === null) return {};
  const { status, counts } = ended;
  metrics.batchEnded(batch, status, batch.expiresAtMs - clock.nowMs());
  const [outputId, errorId] = [output?.id ?? null, error?.id ?? null];
  const ids = { output: outputId, error: errorId };
  log.info({ batch: batch.id, ...counts, ...ids }, `batch.${status}` as EventType);
  return {
    "batchd.batch.status": status,
    "batchd.output_file.id": outputId,
    "batchd.error_file.id": errorId,
  };
}

type Results = Omit<BatchResult, "announcements">;

interface ToWrite extends ClaimedBatch {
  readonly ids: ResultIds;
  readonly damages: object[];
}

/** Logs what was lost, once the lease has held so far: without it the sweep may have removed the journal of a deleted batch. */
function logDamages({ batch, damages }: ToWrite, { log }: Pick<FinalizerDeps, "log">): void {
  for (const damage of damages) log.error({ batch: batch.id, ...damage }, "journal.damaged");
}

/** Writes both files. Returns null when the run is to end first, or lines have to be sent again. */
async function writeResults(
  toWrite: ToWrite,
  run: Run,
  deps: FinalizerDeps,
): Promise<Results | null> {
  const { batch, ids } = toWrite;
  const results = new BatchResults(deps.blobs, ids);
  const { merge, canSendAgain } = mergeOf(toWrite, deps);
  // The rows are not needed any more once lines are to be sent again; the pass goes on to find all damage.
  const isInVain = () => run.stop.aborted || (canSendAgain && merge.incomplete.length > 0);
  try {
    await addRows(results, { toWrite, merge, isInVain, stop: run.stop }, deps);
    if (isInVain()) {
      await results.discard();
      await giveBack(toWrite, run.stop.aborted ? [] : merge.incomplete, deps);
      return null;
    }
    // The store wrote the other date. What this process takes for the store's clock may be a little behind it.
    const nowMs = Math.max(deps.fleet.nowMs, batch.finalizingAtMs ?? 0);
    const life = { nowMs, lifetimeSeconds: lifetimeOf(batch, deps.rulesOf) };
    const lostBlobKeys = merge.incomplete.flatMap((chunk) => chunk.lostBlobKeys);
    return { ...(await results.finish(batch, life, deps)), lostBlobKeys };
  } catch (cause) {
    await results.discard();
    throw cause;
  }
}

interface Pass {
  readonly toWrite: ToWrite;
  readonly merge: Merge;
  readonly isInVain: () => boolean;
  readonly stop: AbortSignal;
}

/** Adds the rows of all lines, and those that a retry takes over, in the order of the input. */
async function addRows(
  results: BatchResults,
  { toWrite, merge, isInVain, stop }: Pass,
  deps: FinalizerDeps,
): Promise<void> {
  const { store, maxDuplicateBytes } = deps;
  const { batch } = toWrite;
  const source = { store, ...sourceOf(toWrite, deps) };
  const kept = KeptRows.of(batch, source);
  const addKept = async (before: number) => {
    if (kept === null) return;
    for await (const { kind, row } of kept.before(before)) {
      if (stop.aborted) return;
      await results.addKept(kind, row);
    }
  };
  try {
    const merged = merge.rows(await store.listChunkJournals(batch.id));
    for await (const rows of withDuplicates(merged, batch, { ...source, maxDuplicateBytes })) {
      if (stop.aborted) break;
      if (isInVain()) continue;
      for (const row of rows) {
        // A row may have 64 MB.
        if (stop.aborted) break;
        if (kept !== null) await addKept(row.lineNumber);
        const added = results.add(row, source.blobs);
        if (added !== null) await added;
      }
    }
    if (!isInVain()) await addKept(Number.POSITIVE_INFINITY);
  } finally {
    await kept?.close();
  }
}

/** Returns what the lines are read from, and how. */
const sourceOf = ({ input, failureCount, damages }: ToWrite, { blobs }: FinalizerDeps) => ({
  blobs: doubted(blobs, failureCount),
  inputBlobKey: input?.blobKey ?? NO_SUCH_BLOB,
  isLastTry: failureCount >= MAX_FAILURES,
  onDamaged: (damage: object) => void damages.push(damage),
});

function mergeOf(toWrite: ToWrite, deps: FinalizerDeps) {
  const { batch } = toWrite;
  const { fleet } = deps;
  const canSendAgain = batch.stopReason === null && fleet.nowMs < batch.expiresAtMs;
  const merge = new Merge({
    ...sourceOf(toWrite, deps),
    stopReason: batch.stopReason,
    left: canSendAgain ? "sent_again" : "rows",
  });
  return { merge, canSendAgain };
}

/** Gives the batch to its next finalizer, or back to the runs that send the lines of its incomplete chunks again. */
async function giveBack(
  toWrite: ToWrite,
  incomplete: readonly IncompleteChunk[],
  deps: FinalizerDeps,
): Promise<void> {
  const { store, metrics, log, onReopened } = deps;
  const { lease } = toWrite;
  const chunks = incomplete.length;
  if (chunks > 0 && (await store.reopenChunksIfLeased(lease, incomplete))) {
    logDamages(toWrite, deps);
    log.warn({ batch: lease.batchId, chunks }, "batch.reopened");
    onReopened();
  } else if (!(await store.releaseBatchIfLeased(lease))) return;
  metrics.leaseChanged("batch", "released");
}

/** Returns what the client asked for, within what its project may have. */
function lifetimeOf(batch: Batch, rulesOf: RulesOf): number {
  const asked = batch.outputExpiresAfterSeconds ?? RESULT_LIFETIME_SECONDS;
  return Math.min(asked, rulesOf(batch.project).resultLifetimeSeconds ?? asked);
}
