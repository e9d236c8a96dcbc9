/**
 * The operations of a client on batches. A new batch is only a row, and the row is its place in the queue. The engine
 * reads the input file later, and reports a missing or faulty file then.
 */
import type { Batch, BatchId, FileId, ScopedId } from "../batch/batch.ts";
import type { RulesOf } from "../batch/project.ts";
import { isFinal, maySendLines } from "../batch/status.ts";
import type { Clock } from "../clock.ts";
import type { BatchStatus } from "../contract/batch.ts";
import { PublicError } from "../errors.ts";
import type { BatchChange, BatchQuery } from "../store/batches.ts";
import type { NewDelivery } from "../store/deliveries.ts";
import { StoreUnavailable } from "../store/failures.ts";
import type { ReceiptFor } from "../store/idempotency.ts";
import type { Page } from "../store/page.ts";
import type { Store } from "../store/store.ts";
import type { Log } from "../telemetry/log.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import { during, type Tracing } from "../telemetry/tracing.ts";
import { truncate } from "../text/truncate.ts";
import {
  allowedWindowMs,
  assertFileId,
  assertMetadata,
  type BatchRequest,
  newBatch,
} from "./batch-request.ts";
import { assertPriced, type BudgetDeps } from "./budgets.ts";
import type { DeliveryRequest } from "./delivery-requests.ts";
import { withinQuotas } from "./quotas.ts";

export interface BatchesDeps extends BudgetDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly tracing: Tracing;
  /** Returns the windows that a client may ask for, such as `24h`. */
  readonly completionWindows: () => readonly string[];
  readonly rulesOf: RulesOf;
  /** Makes the deliveries that a batch is created with, or throws. */
  readonly newDeliveries: (
    project: string,
    requests: readonly DeliveryRequest[],
  ) => Promise<readonly NewDelivery[]>;
  /**
   * Makes the engine look for a new batch at once. Every nudge only saves time: the engine finds the batch without it.
   */
  readonly nudge: () => void;
  /** Makes the engine look for a batch to stop at once. */
  readonly nudgeStopping: () => void;
  /** Makes a runner of this process end at once what it delivers of deleted batches. */
  readonly nudgeDeliveries: () => void;
  /** Resolves once this process sends no new lines of paused batches. */
  readonly pauseRuns: () => Promise<void>;
  /** Makes the engine look at once for lines that may go out again. */
  readonly nudgeChunks: () => void;
}

/** What the commit of a new batch stores beside its row. */
interface Insertion {
  readonly deliveries: readonly NewDelivery[];
  readonly receiptFor: ReceiptFor<Batch> | undefined;
}

interface DeletedBatch {
  readonly id: BatchId;
  /** The input that was deleted with it; null when there was none. */
  readonly deletedInputId: FileId | null;
}

const CANNOT_CANCEL: readonly BatchStatus[] = ["completed", "failed", "expired"];

export class Batches {
  readonly #deps: BatchesDeps;

  constructor(deps: BatchesDeps) {
    this.#deps = deps;
  }

  async create(
    project: string,
    request: BatchRequest,
    receiptFor?: ReceiptFor<Batch>,
  ): Promise<Batch> {
    assertFileId(request.inputFileId);
    this.assertAcceptable(request);
    if (request.budget !== null) {
      await assertPriced({ ...request, project, model: null }, "x_batchd.budget", this.#deps);
    }
    const { log, metrics, nudge, newDeliveries } = this.#deps;
    const deliveries = await newDeliveries(project, request.deliver);
    const batch = await this.#traced(project, request, (traceparent) =>
      this.#insert(project, { ...request, traceparent }, { deliveries, receiptFor }),
    );
    metrics.batchCreated(batch);
    const { requestId: request_id } = request.origin;
    log.info({ batch: batch.id, project, input: batch.inputFileId, request_id }, "batch.created");
    nudge();
    return batch;
  }

  /** Throws when a batch with these fields would be refused, whatever its input is. */
  assertAcceptable({ completionWindow, metadata }: Omit<BatchRequest, "inputFileId">): void {
    allowedWindowMs(completionWindow, this.#deps.completionWindows());
    assertMetadata(metadata ?? {});
  }

  async #insert(
    project: string,
    request: BatchRequest & Pick<Batch, "traceparent">,
    { deliveries, receiptFor }: Insertion,
  ): Promise<Batch> {
    const { store, clock, completionWindows, rulesOf } = this.#deps;
    const windowMs = allowedWindowMs(request.completionWindow, completionWindows());
    const made = newBatch(project, request, { nowMs: clock.nowMs(), windowMs });
    const { quotas } = rulesOf(project);
    try {
      await withinQuotas(project, () =>
        store.insertBatch(made, { receipt: receiptFor?.(made), quotas, deliveries }),
      );
    } catch (cause) {
      // With a key, the same request may be sent again.
      const isInDoubt = cause instanceof StoreUnavailable && cause.mayBeMade;
      throw isInDoubt && receiptFor === undefined ? maybeMade(made, cause) : cause;
    }
    return made;
  }

  /**
   * Continues the trace of the request, or else of the input: of its upload, or of the batch whose lines it takes. So one trace
   * reaches from the upload to the last output.
   */
  async #traced(
    project: string,
    { inputFileId, source, endpoint, origin }: BatchRequest,
    insert: (traceparent: string | null) => Promise<Batch>,
  ): Promise<Batch> {
    const { store, tracing } = this.#deps;
    const input =
      source === null
        ? await store.findFile({ project, id: inputFileId })
        : await store.findBatch({ project, id: source.batchId });
    const former = input?.traceparent ?? null;
    const parent = origin.traceparent ?? former;
    const link = parent === former ? null : former;
    const attributes = { "batchd.endpoint": endpoint, "batchd.request.id": origin.requestId };
    const span = tracing.start("batch.create", { parent, link, kind: "server", attributes });
    return during(
      span,
      () => insert(span.traceparent ?? parent),
      ({ id }) => ({ "batchd.batch.id": id, "batchd.file.id": inputFileId }),
    );
  }

  /** Finds a batch that a client named in `param`; in the path when it is left out. */
  async find(asked: ScopedId<"batch">, param?: string): Promise<Batch> {
    assertBatchId(asked.id, param);
    const batch = await this.#deps.store.findBatch(asked);
    if (batch === null) throw noSuchBatch(asked.id, param);
    return batch;
  }

  async list(query: BatchQuery): Promise<Page<Batch>> {
    if (query.limit === 0) return { data: [], hasMore: false };
    const page = await this.#deps.store.listBatches(query);
    if (page === null) throw noSuchBatch(query.after ?? "", "after");
    return page;
  }

  /** Changes what a client may change. A batch that sends no lines any more keeps its budget and its priority. */
  async update(asked: ScopedId<"batch">, change: BatchChange): Promise<Batch> {
    const { store, log, pauseRuns } = this.#deps;
    assertMetadata(change.metadata ?? {});
    const before = await this.find(asked);
    if (change.budget != null) await assertPriced(before, "budget", this.#deps);
    const { id, project } = before;
    const isChanged = await store.updateBatchIfAllowed({ project, id }, change);
    const batch = await this.find(asked);
    if (!isChanged) throw cannotChange(batch, change);
    log.info({ batch: id, project, keys: Object.keys(change) }, "batch.updated");
    // Runs of this process learn of a budget now, and those of others by a nudge. They need no metadata.
    if ("budget" in change || "priority" in change) await pauseRuns();
    return batch;
  }

  /** Cancels a batch. A repeated call succeeds; a batch that ended by itself cannot be cancelled. */
  async cancel(asked: ScopedId<"batch">): Promise<Batch> {
    const { store, log, nudgeStopping } = this.#deps;
    assertBatchId(asked.id);
    if (await store.cancelBatchIfOpen(asked)) {
      log.info({ batch: asked.id, project: asked.project }, "batch.cancelling");
      nudgeStopping();
    }
    const batch = await this.find(asked);
    if (CANNOT_CANCEL.includes(batch.status)) {
      throw new PublicError("conflict", `Cannot cancel a batch with status '${batch.status}'.`);
    }
    if (batch.stopReason === "expired") assertInWindow(batch, "cancel");
    return batch;
  }

  /** Deletes a batch and its results, and its input if asked to. An open batch is cancelled. */
  async delete(
    asked: ScopedId<"batch">,
    options: { readonly withInput: boolean },
  ): Promise<DeletedBatch> {
    const { store, log, nudge, nudgeStopping, nudgeDeliveries } = this.#deps;
    const { id, project, inputFileId } = await this.find(asked);
    // A client may create a batch of any id, and the file of another project is not deleted.
    const input = options.withInput ? await store.findFile({ project, id: inputFileId }) : null;
    if (!(await store.deleteBatchIfPresent({ project, id }, options))) throw noSuchBatch(id);
    log.info({ batch: id, project, with_input: options.withInput }, "batch.deleted");
    nudgeStopping();
    nudgeDeliveries();
    nudge();
    return { id, deletedInputId: input?.id ?? null };
  }

  /** Sends no new lines of a batch until it is resumed. A repeated call changes nothing. */
  async pause(asked: ScopedId<"batch">): Promise<Batch> {
    const { store, log, pauseRuns } = this.#deps;
    assertBatchId(asked.id);
    if (await store.pauseBatchIfOpen(asked, "requested")) {
      log.info({ batch: asked.id, project: asked.project }, "batch.paused");
      await pauseRuns();
    }
    const batch = await this.find(asked);
    if (!maySendLines(batch.status)) {
      throw new PublicError("conflict", `Cannot pause a batch with status '${batch.status}'.`);
    }
    assertInWindow(batch, "pause");
    return batch;
  }

  /** Lets the lines of a batch go out again. A batch that is not paused stays as it is. */
  async resume(asked: ScopedId<"batch">): Promise<Batch> {
    const { store, log, nudgeChunks } = this.#deps;
    assertBatchId(asked.id);
    if (await store.resumeBatchIfPaused(asked)) {
      log.info({ batch: asked.id, project: asked.project }, "batch.resumed");
      nudgeChunks();
    }
    const batch = await this.find(asked);
    if (batch.status === "cancelling" || isFinal(batch.status)) {
      throw new PublicError("conflict", `Cannot resume a batch with status '${batch.status}'.`);
    }
    assertInWindow(batch, "resume");
    return batch;
  }
}

/** Refuses a batch that is `in_progress` only until its requests in flight have ended. */
function assertInWindow({ stopReason }: Batch, action: string): void {
  if (stopReason === null) return;
  throw new PublicError("conflict", `Cannot ${action} a batch whose completion window is over.`);
}

function cannotChange({ status, stopReason }: Batch, change: BatchChange): PublicError {
  const field = "budget" in change ? "budget" : "priority";
  const state =
    maySendLines(status) && stopReason !== null
      ? "whose completion window is over"
      : `with status '${status}'`;
  return new PublicError("conflict", `Cannot change the ${field} of a batch ${state}.`);
}

const noSuchBatch = (id: string, param?: string) =>
  new PublicError("not_found", `No batch found with id '${truncate(id)}'.`, { param });

function assertBatchId(id: string, param = "batch_id"): void {
  if (id.startsWith("batch")) return;
  throw new PublicError(
    "invalid_value",
    `Invalid '${param}': '${truncate(id)}'. Expected an ID that begins with 'batch'.`,
    { param },
  );
}

const maybeMade = ({ id }: Batch, cause: StoreUnavailable) =>
  new PublicError(
    "outcome_unknown",
    `The server has lost its database while it stored the batch '${id}', and cannot tell whether it is there. Ask for it, or for the list, before you create it again.`,
    { cause },
  );
