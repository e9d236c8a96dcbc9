/**
 * The operations of a client on deliveries: to ask for one, to look at them, to cancel one. They only write what is wanted to
 * the store; `deliveries/` makes the attempts.
 */
import type { Batch, ScopedId, UntrustedId } from "../batch/batch.ts";
import { type Delivery, isCancelled } from "../batch/delivery.ts";
import { isFinal } from "../batch/status.ts";
import type { BatchStatus } from "../contract/batch.ts";
import { PublicError } from "../errors.ts";
import type { DeliveryQuery, DeliveryStore, NewDelivery } from "../store/deliveries.ts";
import type { ReceiptFor } from "../store/idempotency.ts";
import type { Page } from "../store/page.ts";
import type { Log } from "../telemetry/log.ts";
import { truncate } from "../text/truncate.ts";
import {
  type DeliveryRequest,
  type DeliveryRequestDeps,
  newDelivery,
} from "./delivery-requests.ts";

export interface DeliveriesDeps extends DeliveryRequestDeps {
  readonly store: DeliveryStore;
  readonly log: Log;
  /** Finds a batch of the project, or throws. */
  readonly findBatch: (asked: ScopedId<"batch">) => Promise<Batch>;
  /** Makes a runner look for due deliveries at once. */
  readonly nudge: () => void;
  /** Makes a runner of this process look whether what is under way is to be ended. */
  readonly nudgeHeld: () => void;
}

export class Deliveries {
  readonly #deps: DeliveriesDeps;

  constructor(deps: DeliveriesDeps) {
    this.#deps = deps;
  }

  async create(
    asked: ScopedId<"batch">,
    request: DeliveryRequest,
    receiptFor?: ReceiptFor<Delivery>,
  ): Promise<Delivery> {
    const { store, log, nudge, findBatch } = this.#deps;
    const { id: batchId, project, status } = await findBatch(asked);
    if (!isFinal(status) || status === "failed") throw noResults(status);
    const made = await newDelivery(project, { request, path: "" }, this.#deps);
    const delivery = pendingDelivery(made, batchId);
    const receipt = receiptFor?.(delivery);
    const insertion = await store.insertDeliveryIfFinal({ project, id: batchId }, made, receipt);
    switch (insertion.kind) {
      case "stored":
        break;
      case "no_batch":
        await findBatch(asked);
        throw conflict(`The batch '${batchId}' was deleted.`);
      case "no_results":
        throw noResults(insertion.status);
      case "files_deleted":
        throw conflict(`A result file of the batch '${batchId}' was deleted.`);
      case "under_way":
        throw inProgress(delivery);
    }
    log.info(
      { delivery: made.id, batch: batchId, project, location: made.location },
      "delivery.created",
    );
    nudge();
    return delivery;
  }

  async list(query: DeliveryQuery): Promise<Page<Delivery>> {
    const { findBatch, store } = this.#deps;
    const { id, project } = await findBatch(query.batch);
    if (query.limit === 0) return { data: [], hasMore: false };
    const page = await store.listDeliveries({ ...query, batch: { project, id } });
    if (page === null) throw noSuchDelivery(query.after ?? "", "after");
    return page;
  }

  async find(asked: ScopedId<"batch">, id: UntrustedId<"delivery">): Promise<Delivery> {
    const { findBatch, store } = this.#deps;
    const batch = await findBatch(asked);
    const found = await store.findDelivery({ project: batch.project, id: batch.id }, id);
    if (found === null) throw noSuchDelivery(id);
    return found;
  }

  /**
   * Cancels a delivery that has not ended. One under way ends when its holder has stopped and cleaned up. A repeated call
   * succeeds.
   */
  async cancel(asked: ScopedId<"batch">, id: UntrustedId<"delivery">): Promise<Delivery> {
    const { store, log, nudge, nudgeHeld } = this.#deps;
    const before = await this.find(asked, id);
    const { project } = asked;
    const batch = { project, id: before.batchId };
    const cancellation = await store.cancelDeliveryIfOpen(batch, id);
    const delivery = await this.find(asked, id);
    if (cancellation === "ended") {
      log.info({ delivery: delivery.id, batch: delivery.batchId, project }, "delivery.cancelled");
    } else if (cancellation === "asked") {
      nudge();
      nudgeHeld();
    }
    if (cancellation !== null || isCancelled(delivery)) return delivery;
    throw conflict(`Cannot cancel a delivery with status '${delivery.status}'.`);
  }
}

const pendingDelivery = (made: NewDelivery, batchId: Batch["id"]): Delivery => ({
  id: made.id,
  batchId,
  location: made.location,
  s3: made.s3,
  path: made.path,
  format: made.format,
  status: "pending",
  attemptCount: 0,
  error: null,
  address: null,
  createdAtMs: made.createdAtMs,
  dueAtMs: made.createdAtMs,
  nextAttemptAtMs: made.createdAtMs,
  endedAtMs: null,
});

const conflict = (message: string) => new PublicError("conflict", message);

const noResults = (status: BatchStatus) =>
  conflict(
    status === "failed"
      ? "A batch with status 'failed' has no results to deliver."
      : `Cannot deliver the results of a batch with status '${status}': it has not ended yet. 'x_batchd.deliver' of a new batch delivers them when it does.`,
  );

const inProgress = ({ batchId, location, s3 }: Delivery) =>
  new PublicError(
    "delivery_in_progress",
    `A delivery of the batch '${batchId}' to ${location === null ? `the bucket '${s3?.bucket}'` : `'${location}'`} has not ended. Wait for it, or cancel it.`,
  );

const noSuchDelivery = (id: string, param?: string) =>
  new PublicError("not_found", `No delivery found with id '${truncate(id)}'.`, { param });
