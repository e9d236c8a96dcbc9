/**
 * Batches that run lines of another batch again. Their input is a real file, made of those lines, and one commit stores the
 * file with the batch: a kill leaves both or neither. Until that commit an intent keeps the blob from the sweep, and the
 * sweep removes the blob of a request that came to nothing.
 */
import type { Batch, BatchSource, MergedFiles, StoredFile, UntrustedId } from "../batch/batch.ts";
import { NoLineNumbers } from "../batch/finished-line.ts";
import type { RulesOf } from "../batch/project.ts";
import { isFinal } from "../batch/status.ts";
import { BlobNotFound, type Blobs } from "../blobs/blobs.ts";
import type { SourceLines } from "../contract/batch.ts";
import { PublicError } from "../errors.ts";
import type { ReceiptFor } from "../store/idempotency.ts";
import type { Store } from "../store/store.ts";
import type { Batches, BatchRequest } from "./batches.ts";
import { linesOfSource } from "./derived-input.ts";
import { type Files, intentRevoked } from "./files.ts";
import type { Places } from "./places.ts";
import { withinQuotas } from "./quotas.ts";

/** The parameter that names the source. */
const PARAM = "x_batchd.from";

export interface DerivedBatchesDeps {
  readonly store: Store;
  readonly blobs: Blobs;
  readonly files: Files;
  readonly batches: Batches;
  readonly rulesOf: RulesOf;
  /** The places of those who read results, of which a derived batch takes one while its input is made. */
  readonly places: Places;
  readonly maxFileBytes: () => number;
}

/** Which lines of which batch a new one runs again. */
export interface SourceRequest {
  readonly batchId: UntrustedId<"batch">;
  readonly lines: SourceLines;
  /** Whether the result files shall have all lines of the source. */
  readonly isMerged: boolean;
}

export interface DerivedBatchRequest extends Omit<BatchRequest, "inputFileId"> {
  readonly from: SourceRequest;
}

interface Source {
  readonly batch: Batch;
  readonly input: StoredFile;
  readonly error: StoredFile | null;
}

export class DerivedBatches {
  readonly #deps: DerivedBatchesDeps;

  constructor(deps: DerivedBatchesDeps) {
    this.#deps = deps;
  }

  async create(
    project: string,
    { from, ...request }: DerivedBatchRequest,
    receiptFor?: ReceiptFor<Batch>,
  ): Promise<Batch> {
    const { batches, files, places, maxFileBytes } = this.#deps;
    const { batch: source, input, error } = await this.#findSource(project, from);
    assertEndpoint(source, request.endpoint);
    batches.assertAcceptable(request);
    using _place = places.take(project);
    const content = linesOfSource(
      { ...{ input, error, lines: from.lines }, hasResults: hasResults(source) },
      this.#deps.blobs,
    );
    try {
      const first = await content.next();
      if (first.done === true) throw noSuchLines(source, from.lines);
      let made: Batch | null = null;
      const incoming = {
        filename: `${source.id}_${from.lines}.jsonl`,
        content: withFirst(first.value, content),
        requestBytes: null,
        details: async () => ({ purpose: "batch", expiresAfterSeconds: null }) as const,
        origin: request.origin,
      };
      await files.store(project, incoming, {
        maxBytes: maxFileBytes(),
        publish: async (file) => {
          made = await this.#publish(
            file,
            { project, request, receiptFor },
            sourceOf(source, from),
          );
        },
      });
      if (made === null) throw new Error("a file was stored without its batch");
      return made;
    } catch (cause) {
      throw publicError(source, cause);
    } finally {
      await content.return(undefined);
    }
  }

  async #publish(
    file: StoredFile,
    {
      project,
      request,
      receiptFor,
    }: {
      readonly project: string;
      readonly request: Omit<BatchRequest, "inputFileId">;
      readonly receiptFor: ReceiptFor<Batch> | undefined;
    },
    { source, inherited }: { readonly source: BatchSource; readonly inherited: Partial<Batch> },
  ): Promise<Batch> {
    const { store, batches, rulesOf } = this.#deps;
    const { quotas } = rulesOf(project);
    const defaultModel = request.defaultModel ?? inherited.defaultModel ?? null;
    return batches.createWith(
      project,
      { ...request, defaultModel, inputFileId: file.id },
      async (made) => {
        const batch = { ...made, source, lineMarks: inherited.lineMarks ?? [] };
        const receipt = receiptFor?.(batch);
        const stored = await withinQuotas(project, () =>
          store.insertDerivedBatch({ batch, file, receipt, quotas }),
        );
        if (stored === "revoked") throw intentRevoked(file.blobKey);
        if (stored === "gone") throw deletedMeanwhile(source);
        return batch;
      },
    );
  }

  async #findSource(project: string, { batchId, isMerged }: SourceRequest): Promise<Source> {
    const { store, batches } = this.#deps;
    const batch = await batches.find({ project, id: batchId }, `${PARAM}.batch`);
    if (!isFinal(batch.status) || batch.status === "failed") {
      throw conflict(`Cannot run lines of a batch with status '${batch.status}' again.`);
    }
    const find = (id: UntrustedId<"file"> | null) =>
      id === null ? null : store.findFile({ project, id });
    const input = await find(numberedInputOf(batch));
    if (input === null) {
      throw conflict(
        `The input file of the batch '${batch.id}' was deleted. Upload its lines again.`,
      );
    }
    const error = await find(batch.errorFileId);
    const output = isMerged ? await find(batch.outputFileId) : null;
    const isLost =
      (batch.errorFileId !== null && error === null) ||
      (isMerged && batch.outputFileId !== null && output === null);
    if (isLost) {
      throw conflict(
        `A result file of the batch '${batch.id}' was deleted, so it is not known which of its lines failed.`,
      );
    }
    return { batch, input, error };
  }
}

/** Returns the file that numbers the lines of a batch. */
const numberedInputOf = ({ source, inputFileId }: Batch): UntrustedId<"file"> =>
  source?.merge?.inputFileId ?? inputFileId;

const hasResults = ({ outputFileId, errorFileId }: Batch) =>
  outputFileId !== null || errorFileId !== null;

/** Returns the link to the source, and what a batch inherits from it: its lines may need the default model. */
function sourceOf(
  batch: Batch,
  { lines, isMerged }: SourceRequest,
): { readonly source: BatchSource; readonly inherited: Partial<Batch> } {
  const { outputFileId, errorFileId, defaultModel } = batch;
  const merge: MergedFiles | null =
    isMerged && hasResults(batch)
      ? { inputFileId: numberedInputOf(batch), outputFileId, errorFileId }
      : null;
  const lineMarks = merge === null ? [] : batch.lineMarks;
  return { source: { batchId: batch.id, lines, merge }, inherited: { defaultModel, lineMarks } };
}

function assertEndpoint(source: Batch, endpoint: string): void {
  if (source.endpoint === endpoint) return;
  throw new PublicError(
    "invalid_value",
    `Invalid 'endpoint': the lines of the batch '${source.id}' are for '${source.endpoint}'.`,
    { param: "endpoint" },
  );
}

async function* withFirst(first: Buffer, rest: AsyncGenerator<Buffer>): AsyncGenerator<Buffer> {
  yield first;
  yield* rest;
}

const conflict = (message: string, cause?: unknown) =>
  new PublicError("conflict", message, { param: PARAM, cause });

const noSuchLines = ({ id, status }: Batch, lines: SourceLines) =>
  conflict(`The batch '${id}' with status '${status}' has no lines that ${VERBS[lines]}.`);
const VERBS = { failed: "failed", succeeded: "succeeded", all: "can run again" } as const;

const deletedMeanwhile = ({ batchId }: BatchSource) =>
  conflict(`The batch '${batchId}', or a result file of it, was deleted.`);

function publicError({ id }: Batch, cause: unknown): unknown {
  if (cause instanceof NoLineNumbers) {
    return conflict(
      `The result files of the batch '${id}' were written by an older version, which did not number its lines.`,
      cause,
    );
  }
  if (cause instanceof BlobNotFound) {
    return conflict(`A file of the batch '${id}' was deleted.`, cause);
  }
  return cause;
}
