/**
 * Makes the input of a batch out of lines of another one, once that one has ended. Then the batch is validated like any other.
 *
 * The input is a real file. Its blob is written first, under an intent, and one commit guarded by the lease publishes the
 * file under the id that the batch has named since it was created. A kill leaves the batch as it was: the next holder of the
 * lease makes the input again, of the same files. A source that cannot be used fails the batch, with a fault that says why.
 */
import type { Batch, BatchSource, FileId, StoredFile } from "../../batch/batch.ts";
import {
  hasResults,
  mergedFilesOf,
  noSuchLines,
  readsOutput,
  type SourceFiles,
  sourceFileIds,
  sourceProblem,
} from "../../batch/derivation.ts";
import { fileTooLarge } from "../../batch/file-check.ts";
import { NoLineNumbers } from "../../batch/finished-line.ts";
import { shorter } from "../../batch/project.ts";
import type { BlobIntents } from "../../blobs/blob-intents.ts";
import type { BlobReader } from "../../blobs/blobs.ts";
import { findFilesOf } from "../../store/files.ts";
import type { ProjectTurn } from "../../store/project-turns.ts";
import { QuotaExceeded } from "../../store/quotas.ts";
import type { BatchToDerive, DerivedInput } from "../../store/sources.ts";
import type { Attributes } from "../../telemetry/tracing.ts";
import { type Refusal, refusal, refusalFor } from "../intake/input-reading.ts";
import { failBatch, type IntakeDeps } from "../intake/intake.ts";
import { isLost } from "../journal/segment.ts";
import { ResultWriter, resultBlobKey } from "../results/result-writer.ts";
import { runStep } from "../steps/batch-run.ts";
import { doubted } from "../steps/doubted-blobs.ts";
import { MAX_FAILURES } from "../steps/failure.ts";
import type { Work } from "../steps/side-by-side.ts";
import { DerivedLines } from "./derived-lines.ts";

export interface DerivingDeps extends IntakeDeps {
  readonly intents: BlobIntents;
  /** The callback for a batch that can be validated now. */
  readonly onDerived: () => void;
  /** The time of the next thorough look, which lasts from one claim to the next. */
  readonly look: { thoroughAtMs: number };
}

/** The lifetime of an input, 30 days, as for one that is uploaded. */
const INPUT_LIFETIME_SECONDS = 30 * 24 * 60 * 60;
/** Batches whose source lacks its mark wait so long at most: a thorough look reads all waiting batches. */
const THOROUGH_EVERY_MS = 60_000;
const PARAM = "x_batchd.from";

/** The end of a try: the bytes of the input, the faults of the batch, or null when the run was to end first. */
type Derived = { readonly bytes: number } | Refusal | null;

/** Claims one batch whose source has ended, and returns the making of its input; null when there is none. */
export async function claimToDerive(turn: ProjectTurn, deps: DerivingDeps): Promise<Work | null> {
  const { store, leases, look, clock } = deps;
  const claim = async (isThorough: boolean) =>
    store.claimBatchToDerive(await leases.claim(), { ...turn, isThorough });
  const isLookDue = clock.elapsedMs() >= look.thoroughAtMs;
  const claimed = (await claim(false)) ?? (isLookDue ? await claim(true) : null);
  if (isLookDue && claimed === null) look.thoroughAtMs = clock.elapsedMs() + THOROUGH_EVERY_MS;
  if (claimed === null) return null;
  const work = async ({ stop }: { readonly stop: AbortSignal }) => {
    const derived = await derive(claimed, stop, deps);
    await end(claimed, derived, deps);
    return derived;
  };
  const run = () => runStep(claimed, { name: "batch.derive", work, describe }, deps);
  return { project: claimed.batch.project, run };
}

function describe(derived: Derived): Attributes {
  if (derived === null) return {};
  return "faults" in derived
    ? { "batchd.batch.faults": derived.faults.length }
    : { "batchd.file.bytes": derived.bytes };
}

async function end(claimed: BatchToDerive, derived: Derived, deps: DerivingDeps): Promise<void> {
  const { store, metrics, log, onDerived } = deps;
  const { batch, lease } = claimed;
  if (derived === null) {
    if (await store.releaseBatchIfLeased(lease)) metrics.leaseChanged("batch", "released");
  } else if ("faults" in derived) {
    await failBatch(claimed, derived.faults, deps);
  } else {
    metrics.leaseChanged("batch", "closed");
    const { bytes } = derived;
    log.info({ batch: batch.id, file: batch.inputFileId, bytes }, "input.derived");
    onDerived();
  }
}

const unusable = (message: string): Refusal => refusalFor("source_unusable", message, PARAM);

async function derive(
  claimed: BatchToDerive,
  stop: AbortSignal,
  deps: DerivingDeps,
): Promise<Derived> {
  const { batch, failureCount } = claimed;
  if (batch.source === null) throw new Error("a batch without a source has no input to be made");
  if (failureCount >= MAX_FAILURES) return givenUp(batch, deps);
  const { project, source: derivation } = batch;
  const source = await deps.store.findBatch({ project, id: derivation.batchId });
  if (source === null) return unusable(`The batch '${derivation.batchId}' was deleted.`);
  const files = await findFilesOf(deps.store, project, sourceFileIds(source, derivation));
  const problem = sourceProblem(source, derivation, files);
  const { input } = files;
  if (problem !== null || input === null) return unusable(problem ?? "The input was deleted.");
  try {
    const reader = doubted(deps.blobs, failureCount);
    const making = { source, derivation, files: { ...files, input }, stop, reader };
    return await make(claimed, making, deps);
  } catch (error) {
    const known = problemOf(error, source);
    if (known === null) throw error;
    return known;
  }
}

/** Returns null for an error that may pass. */
function problemOf(error: unknown, { id }: Batch): Refusal | null {
  if (error instanceof NoLineNumbers) {
    return unusable(
      `The result files of the batch '${id}' were written by an older version, which did not number its lines.`,
    );
  }
  if (isLost(error)) {
    return unusable(`A file of the batch '${id}' was deleted, or cannot be read any more.`);
  }
  if (!(error instanceof QuotaExceeded)) return null;
  const { quota, limit } = error;
  const message = `The project has no room for the input that was made of lines of '${id}': its quota ${quota} is ${limit.toLocaleString("en-US")}.`;
  return refusalFor("storage_limit_exceeded", message, PARAM);
}

function givenUp({ id }: Batch, { log }: DerivingDeps): Derived {
  log.error({ batch: id }, "batch.given_up");
  return refusalFor("internal_error", "The server failed to make the input file in several tries.");
}

interface Making {
  readonly source: Batch;
  readonly derivation: BatchSource;
  readonly files: SourceFiles<StoredFile>;
  readonly stop: AbortSignal;
  readonly reader: BlobReader;
}

/** Writes the input and publishes it. */
async function make(
  { batch, lease }: BatchToDerive,
  making: Making,
  deps: DerivingDeps,
): Promise<Derived> {
  const { store, intents, rulesOf } = deps;
  // Each try has a blob of its own: another holder may still be writing. The name begins with the id of the file.
  const blobId = `${batch.inputFileId}.${lease.epoch}` as FileId;
  let refused: Derived = null;
  const made = await intents.during([resultBlobKey(blobId)], async () => {
    const written = await write(batch, { ...making, blobId }, deps);
    if (written === null || "faults" in written) {
      refused = written;
      return null;
    }
    const { quotas } = rulesOf(batch.project);
    const input = { file: written, quotas, ...inherited(making, batch) };
    const end = await store.publishInputIfLeased(lease, input);
    if (end === "stored") return written;
    if (end === "gone") {
      refused = unusable(
        `The batch '${making.source.id}', or a file that the results are to be merged with, was deleted.`,
      );
    }
    return null;
  });
  return made === null ? refused : { bytes: made.bytes };
}

/** Returns what a batch takes over from its source. Lines that run as they are may need the default model. */
function inherited(
  { source, derivation }: Making,
  { defaultModel }: Batch,
): Pick<DerivedInput, "merge" | "lineMarks" | "defaultModel"> {
  const merge = mergedFilesOf(source, derivation);
  const ofSource = derivation.template === null ? source.defaultModel : null;
  return {
    merge,
    lineMarks: merge === null ? [] : source.lineMarks,
    defaultModel: defaultModel ?? ofSource,
  };
}

/** Writes the blob. Resolves to its file, to the faults of its lines, or to null when `stop` ended it. */
async function write(
  batch: Batch,
  { source, derivation, files, stop, reader, blobId }: Making & { readonly blobId: FileId },
  deps: DerivingDeps,
): Promise<StoredFile | Refusal | null> {
  const { maxFileBytes } = deps.limits();
  const writer = new ResultWriter(deps.blobs, blobId);
  const lines = new DerivedLines(batch, { ...deps, blobs: reader });
  const withAnswers = readsOutput(derivation.template);
  const wanted = { lines: derivation.lines, files, hasResults: hasResults(source), withAnswers };
  try {
    for await (const piece of lines.of(wanted)) {
      if (stop.aborted || lines.bytes > maxFileBytes) break;
      const room = writer.write(piece);
      if (room !== null) await room;
    }
    const { faults } = lines;
    const isTooLarge = lines.bytes > maxFileBytes;
    if (!stop.aborted && !isTooLarge && faults.length === 0) {
      const file = await writer.finish((blob) => inputFile(batch, blob, deps));
      if (file !== null) return file;
    }
    await writer.discard();
    if (stop.aborted) return null;
    if (isTooLarge) return refusal(fileTooLarge(maxFileBytes));
    if (faults.length > 0) return { ok: false, faults };
    return unusable(noSuchLines(source, derivation));
  } catch (cause) {
    await writer.discard();
    throw cause;
  }
}

function inputFile(
  { inputFileId, project, source, traceparent }: Batch,
  blob: Pick<StoredFile, "blobKey" | "bytes" | "sha256">,
  { fleet, rulesOf }: DerivingDeps,
): StoredFile {
  const createdAtMs = fleet.nowMs;
  const seconds = shorter(INPUT_LIFETIME_SECONDS, rulesOf(project).fileLifetimeSeconds);
  return {
    ...blob,
    // The server drew this id when the batch was created.
    id: inputFileId as FileId,
    project,
    purpose: "batch",
    filename: `${source?.batchId}_${source?.lines}.jsonl`,
    createdAtMs,
    expiresAtMs: seconds === null ? null : createdAtMs + seconds * 1000,
    traceparent,
  };
}
