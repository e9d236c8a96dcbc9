/**
 * Validates a batch: reads its input once, as a stream, and checks and plans every line.
 *
 * One bad line fails the batch, and every bad line is reported (the first `MAX_LISTED_FAULTS` of them). Memory is bounded by
 * the longest line, the custom ids and the plan. The verdict is one guarded commit, so it changes nothing when the
 * batch was cancelled, or its lease was lost, during the read.
 */

import type { Batch, Fault, StoredFile } from "../../batch/batch.ts";
import { fileTooLarge } from "../../batch/file-check.ts";
import { servedBy } from "../../batch/file-models.ts";
import { modelNotFound } from "../../batch/line-check.ts";
import type { PriceRule } from "../../batch/price.ts";
import type { MemoryBudget } from "../../resources/memory-budget.ts";
import type { ClaimedBatch } from "../../store/leases.ts";
import type { ProjectTurn } from "../../store/project-turns.ts";
import { QuotaExceeded } from "../../store/quotas.ts";
import type { Attributes } from "../../telemetry/tracing.ts";
import type { Upstreams } from "../../upstream/upstream.ts";
import type { Fleet } from "../fleet/fleet.ts";
import { decodeReport } from "../fleet/replica-report.ts";
import { isLost } from "../journal/segment.ts";
import { type BatchStepDeps, runStep } from "../steps/batch-run.ts";
import { doubted } from "../steps/doubted-blobs.ts";
import { MAX_FAILURES } from "../steps/failure.ts";
import type { Run } from "../steps/lease.ts";
import type { Work } from "../steps/side-by-side.ts";
import { type DoubtDeps, isDoubted } from "./doubted-verdicts.ts";
import { readLines, readNumbered, sampledLines } from "./input-lines.ts";
import {
  InputReading,
  type IntakeLimits,
  refusal,
  refusalFor,
  type Verdict,
} from "./input-reading.ts";
import { type ServedModels, servedModels } from "./served-models.ts";

export interface IntakeDeps extends BatchStepDeps, Pick<DoubtDeps, "settings"> {
  readonly upstreams: Upstreams;
  readonly fleet: Pick<Fleet, "nowMs" | "workers" | "refresh">;
  readonly memory: MemoryBudget;
  /** The limits are read anew for each batch, which keeps them to its end: the configuration may be loaded again. */
  readonly limits: () => IntakeLimits;
  /** The model for lines without one in a batch without a default of its own. It is read anew for each batch. */
  readonly defaultModel: () => string | null;
  /** Returns the prices that are configured now. */
  readonly prices: () => readonly PriceRule[];
}

/** Claims one waiting batch, and returns its validation; null when there is none. */
export async function claimToValidate(turn: ProjectTurn, deps: IntakeDeps): Promise<Work | null> {
  const { store, leases } = deps;
  const claimed = await store.claimBatchToValidate(await leases.claim(), turn);
  if (claimed === null) return null;
  const work = (run: Run) => validate(claimed, run.stop, deps);
  const run = () => runStep(claimed, { name: "batch.validate", work, describe }, deps);
  return { project: claimed.batch.project, run };
}

/** Resolves to the verdict; null when `stop` ended the reading, or a replica is awaited. */
async function validate(
  claimed: ClaimedBatch,
  stop: AbortSignal,
  deps: IntakeDeps,
): Promise<Verdict | null> {
  const verdict = await judgeForAll(claimed, stop, deps);
  if (verdict === null) {
    const isReleased = await deps.store.releaseBatchIfLeased(claimed.lease);
    if (isReleased) deps.metrics.leaseChanged("batch", "released");
    return null;
  }
  const end = verdict !== "awaited" && verdict.ok ? await start(claimed, verdict, deps) : verdict;
  if (end === "awaited" || isDoubted(end, claimed.batch, deps)) {
    // The lease has to run out before the batch is judged again.
    deps.log.info({ batch: claimed.batch.id }, "batch.waits_for_server");
    return null;
  }
  if (!end.ok) await failBatch(claimed, end.faults, deps);
  return end;
}

/**
 * Judges by what all replicas serve. A batch that lacks a model is judged again: a replica may have begun to serve it since its
 * last report. One that has left some minutes ago may only restart, so a batch that it would take is no refusal yet.
 */
async function judgeForAll(
  claimed: ClaimedBatch,
  stop: AbortSignal,
  deps: IntakeDeps,
): Promise<Verdict | "awaited" | null> {
  const verdict = await judge(claimed, stop, deps);
  if (!lacksModel(verdict)) return verdict;
  await deps.fleet.refresh();
  const again = deps.fleet.workers.length > 0 ? await judge(claimed, stop, deps) : verdict;
  if (!lacksModel(again)) return again;
  const left = (await deps.store.listLeftReplicas()).flatMap(({ owner, report }) => {
    const known = decodeReport(report);
    return known?.isWorker ? [{ owner, targets: known.targets }] : [];
  });
  if (left.length === 0) return again;
  const withLeft = await judge(claimed, stop, deps, deps.upstreams.servedBy(left));
  return withLeft?.ok ? "awaited" : withLeft && again;
}

const lacksModel = (verdict: Verdict | null): boolean =>
  verdict?.ok === false && verdict.faults.some(({ code }) => code === "model_not_found");

function describe(verdict: Verdict | null): Attributes {
  if (verdict === null) return {};
  if (!verdict.ok) return { "batchd.batch.faults": verdict.faults.length };
  const { total, chunks } = verdict.plan;
  return { "batchd.batch.lines": total, "batchd.batch.chunks": chunks.length };
}

/** Ends a batch whose input is not accepted. */
export async function failBatch(
  { lease, batch }: Pick<ClaimedBatch, "lease" | "batch">,
  faults: readonly Fault[],
  { store, clock, log, metrics, announcementsFor, onFinal }: IntakeDeps,
): Promise<void> {
  const failure = { faults, announcements: announcementsFor(batch) };
  const isRecorded = await store.failBatchIfLeased(lease, failure);
  if (!isRecorded) return;
  metrics.leaseChanged("batch", "closed");
  metrics.batchEnded(batch, "failed", batch.expiresAtMs - clock.nowMs());
  onFinal();
  log.info({ batch: batch.id, faults: faults.length }, "batch.failed");
}

/** Starts a batch whose input is accepted, unless its project may not start it now. Resolves to the final verdict. */
async function start(
  { lease, batch }: ClaimedBatch,
  accepted: Extract<Verdict, { readonly ok: true }>,
  { store, log, metrics, rulesOf }: IntakeDeps,
): Promise<Verdict> {
  const { plan } = accepted;
  const { quotas } = rulesOf(batch.project);
  try {
    const { total: lines, chunks } = plan;
    if (await store.startBatchIfLeased(lease, plan, quotas)) {
      metrics.leaseChanged("batch", "closed");
      log.info({ batch: batch.id, lines, chunks: chunks.length }, "batch.started");
    }
    return accepted;
  } catch (error) {
    if (!(error instanceof QuotaExceeded)) throw error;
    const { quota, limit } = error;
    const unit = quota === "enqueued_tokens" ? "token" : "line";
    const message = `Enqueued ${unit} limit reached for ${plan.model} in project ${batch.project}. Limit: ${limit.toLocaleString("en-US")} enqueued ${unit}s (${quota}). Please try again once some in_progress batches have been completed.`;
    return refusalFor("token_limit_exceeded", message);
  }
}

/** Returns null when `stop` ended the reading. */
async function judge(
  { batch, input, failureCount }: ClaimedBatch,
  stop: AbortSignal,
  deps: IntakeDeps,
  isAwaited: (model: string) => boolean = () => false,
): Promise<Verdict | null> {
  if (failureCount >= MAX_FAILURES) return givenUp(batch, deps);
  const limits = deps.limits();
  const models = await servedModels({ ...deps, rules: deps.rulesOf(batch.project), isAwaited });
  const unusable = inputFault(batch, input, limits) ?? defaultModelFault(batch, models);
  if (unusable !== null || input === null) return unusable;
  const lines = {
    input,
    project: batch.project,
    stop,
    maxLineBytes: limits.maxLineBytes,
    deps: { ...deps, blobs: doubted(deps.blobs, failureCount) },
  };
  try {
    const isSampled = await sampledLines(batch, lines);
    const known = { limits, models, isSampled, prices: deps.prices(), input };
    const rules = { ...known, defaultModel: deps.defaultModel() };
    const reading = new InputReading(batch, rules);
    const isRead = batch.source?.merge
      ? await readNumbered(batch, lines, reading)
      : await readLines(lines, (line) => reading.add(line));
    return isRead ? reading.verdict() : null;
  } catch (error) {
    if (!isLost(error)) throw error;
    return unreadable(batch, error, deps);
  }
}

function unreadable({ id, inputFileId }: Batch, err: unknown, { log }: IntakeDeps): Verdict {
  log.error({ batch: id, file: inputFileId, err }, "input.unreadable");
  return refusalFor(
    "input_unreadable",
    `The content of the file ${inputFileId} cannot be read any more. Upload it again.`,
    "file_id",
  );
}

function givenUp({ id }: Batch, { log }: IntakeDeps): Verdict {
  log.error({ batch: id }, "batch.given_up");
  return refusalFor(
    "internal_error",
    "The server failed to validate the input file in several tries.",
  );
}

function inputFault(batch: Batch, input: StoredFile | null, limits: IntakeLimits): Verdict | null {
  // The store looks in the project of the batch only. No project may read another's file, so the check is made twice.
  if (input === null || input.project !== batch.project) {
    return refusalFor(
      "invalid_request",
      `Cannot find file ${batch.inputFileId}, or project ${batch.project} does not have access to it.`,
      "file_id",
    );
  }
  if (input.purpose !== "batch") {
    return refusalFor(
      "invalid_request",
      `The file ${input.id} has the purpose '${input.purpose}'. The input file of a batch must have the purpose 'batch'.`,
      "file_id",
    );
  }
  if (input.bytes > limits.maxFileBytes) {
    return refusal(fileTooLarge(limits.maxFileBytes));
  }
  return null;
}

/** Judges the default that the client chose. The default of the configuration is judged where a line needs it. */
function defaultModelFault(
  { defaultModel }: Batch,
  { routeKeyOf, hintFor }: ServedModels,
): Verdict | null {
  if (defaultModel === null || servedBy(routeKeyOf, defaultModel) !== null) return null;
  return refusal(modelNotFound(defaultModel, "x_batchd.default_model", hintFor(defaultModel)));
}
