/**
 * Batches whose input is made of lines of another batch. Here such a batch is only stored, with the id that its input will
 * have. The engine makes the input once the source has ended (`engine/deriving/deriving.ts`). What is known to be impossible by now is
 * refused at once; what turns out later fails the batch.
 */
import { type Batch, newFileId, type UntrustedId } from "../batch/batch.ts";
import { type Derivation, sourceFileIds, sourceProblem } from "../batch/derivation.ts";
import { isFinal } from "../batch/status.ts";
import { parseTemplate } from "../batch/template.ts";
import type { SourceLines } from "../contract/batch-extension.ts";
import { PublicError } from "../errors.ts";
import { findFilesOf } from "../store/files.ts";
import type { ReceiptFor } from "../store/idempotency.ts";
import type { Store } from "../store/store.ts";
import type { BatchRequest } from "./batch-request.ts";
import type { Batches } from "./batches.ts";

/** The parameter that names the source. */
const PARAM = "x_batchd.from";

export interface DerivedBatchesDeps {
  readonly store: Pick<Store, "findFile">;
  readonly batches: Batches;
}

/** Which lines of which batch a new one runs. */
export interface SourceRequest {
  readonly batchId: UntrustedId<"batch">;
  readonly lines: SourceLines;
  /** Whether the result files shall have all lines of the source. */
  readonly isMerged: boolean;
  /** The template of the bodies, checked by {@link assertTemplate}; null to run the lines as they are. */
  readonly template: Readonly<Record<string, unknown>> | null;
}

export interface DerivedBatchRequest extends Omit<BatchRequest, "inputFileId"> {
  readonly from: SourceRequest;
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
    const { batches } = this.#deps;
    const { lines, isMerged } = from;
    const template = from.template === null ? null : JSON.stringify(from.template);
    const derivation = { lines, isMerged, template };
    const source = await batches.find({ project, id: from.batchId }, `${PARAM}.batch`);
    if (template === null) assertEndpoint(source, request.endpoint);
    await this.#assertUsable(source, derivation);
    const dedupe = request.dedupe ?? (template === null && source.deduplicated !== null);
    const made = { batchId: source.id, ...derivation, merge: null };
    return batches.create(
      project,
      { ...request, dedupe, inputFileId: newFileId(), source: made },
      receiptFor,
    );
  }

  /** Refuses a source that has ended without what is asked of it. */
  async #assertUsable(source: Batch, derivation: Derivation): Promise<void> {
    if (!isFinal(source.status)) return;
    const { project } = source;
    const found = await findFilesOf(this.#deps.store, project, sourceFileIds(source, derivation));
    const problem = sourceProblem(source, derivation, found);
    if (problem !== null) throw new PublicError("conflict", problem, { param: PARAM });
  }
}

/**
 * Refuses a template that means nothing. The request is checked before anything else is done with it, because a template may
 * be nested too deep for JSON.stringify.
 */
export function assertTemplate({ template, lines, isMerged }: SourceRequest): void {
  if (template === null) return;
  const parsed = parseTemplate(template);
  if (typeof parsed === "string") throw invalid("template", `${parsed}.`);
  if (isMerged) {
    throw invalid("merge", "the results of a template are not those of the lines of its source.");
  }
  if (lines === "failed" && parsed.placeholders.some(({ root }) => root === "output")) {
    throw invalid("lines", "lines that failed have no output, which the template needs.");
  }
}

const invalid = (name: string, problem: string) =>
  new PublicError("invalid_value", `Invalid '${PARAM}.${name}': ${problem}`, {
    param: `${PARAM}.${name}`,
  });

function assertEndpoint(source: Batch, endpoint: string): void {
  if (source.endpoint === endpoint) return;
  throw new PublicError(
    "invalid_value",
    `Invalid 'endpoint': the lines of the batch '${source.id}' are for '${source.endpoint}'. A template makes lines for another endpoint.`,
    { param: "endpoint" },
  );
}
