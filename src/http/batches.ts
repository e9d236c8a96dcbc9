/**
 * The routes of batches. They translate between HTTP and `api/batches.ts`, and add to each batch what other parts know of it:
 * its forecast, its cost and its retries. They must decide nothing about a batch.
 */

import type { BatchCost } from "../api/batch-costs.ts";
import type { BatchRequest } from "../api/batch-request.ts";
import type { Batches } from "../api/batches.ts";
import type { ClientLimit } from "../api/client-limit.ts";
import type { InputPlace } from "../api/copied-inputs.ts";
import { assertTemplate, type DerivedBatches, type SourceRequest } from "../api/derived-batches.ts";
import type { Idempotency } from "../api/idempotency.ts";
import type { Batch, BatchId, UntrustedId } from "../batch/batch.ts";
import type { Forecast } from "../batch/forecast.ts";
import { BATCH_PAGE } from "../contract/batch-list.ts";
import { CreateBatch, PRIORITIES, UpdateBatch } from "../contract/create-batch.ts";
import { DEFAULT_COMPLETION_WINDOW } from "../contract/window.ts";
import { PublicError, unsupportedValue } from "../errors.ts";
import type { BatchQuery } from "../store/batches.ts";
import type { ReceiptFor } from "../store/idempotency.ts";
import type { Page } from "../store/page.ts";
import type { Retry } from "../store/sources.ts";
import { batchFilter, fullEndpoint } from "./batch-filter.ts";
import { missingParameter, parseBody, wrongType } from "./body.ts";
import { type AppContext, scopedIdOf } from "./context.ts";
import { type CopyDeps, createOfPlace } from "./copied-inputs.ts";
import { assertMayTakeOut, deliveryRequest, withoutSecrets } from "./deliveries.ts";
import { answerOnce, asking } from "./idempotency.ts";
import { answerJson, assertNoOptions, readJson, toAsciiJson } from "./json.ts";
import { answerPage } from "./list.ts";
import { type BatchDetails, NO_DETAILS, presentBatch } from "./present.ts";
import { assertKnownParams, limitParam, textParam } from "./query.ts";
import type { Routes } from "./routes.ts";
import { originOf } from "./track.ts";

export interface BatchRoutesDeps extends CopyDeps {
  readonly batches: Batches;
  readonly derivedBatches: DerivedBatches;
  readonly searches: ClientLimit;
  /** Returns the batches that run lines of these again, the newest first. */
  readonly retriesOf: (ids: readonly BatchId[]) => Promise<readonly Retry[]>;
  readonly idempotency: Idempotency;
  /** Returns the predictions for batches, and what their first lines had in common, as far as these are known. */
  readonly forecastsFor: (batches: readonly Batch[]) => Promise<ReadonlyMap<BatchId, Forecast>>;
  /** Returns the costs of those batches that have a price. */
  readonly costsFor: (batches: readonly Batch[]) => Promise<ReadonlyMap<BatchId, BatchCost>>;
}

interface DetailedBatch extends BatchDetails {
  readonly id: BatchId;
  readonly batch: Batch;
}

export function mountBatches(app: Routes, deps: BatchRoutesDeps): void {
  const { batches, idempotency, forecastsFor, costsFor, retriesOf } = deps;
  const withDetails = async (found: readonly Batch[]): Promise<DetailedBatch[]> => {
    const ids = found.map(({ id }) => id);
    const [forecasts, costs, retries] = await Promise.all([
      forecastsFor(found),
      costsFor(found),
      retriesOf(ids),
    ]);
    return found.map((batch) => {
      const { id } = batch;
      const retriedBy = retries.filter(({ sourceId }) => sourceId === id).map((by) => by.batchId);
      const forecast = forecasts.get(id) ?? null;
      return { id, batch, forecast, cost: costs.get(id) ?? null, retriedBy };
    });
  };
  const read = async (query: BatchQuery): Promise<Page<DetailedBatch>> => {
    const page = await batches.list(query);
    return { ...page, data: await withDetails(page.data) };
  };
  const present = ({ batch, ...details }: DetailedBatch) => presentBatch(batch, details);
  const presentOne = async (batch: Batch) => {
    const [detailed] = await withDetails([batch]);
    return presentBatch(batch, detailed ?? NO_DETAILS);
  };

  app.post("/v1/batches", async (c) => {
    const asked = batchRequest(await readJson(c));
    const request = { ...asked.request, origin: originOf(c) };
    return answerOnce<Batch>(c, idempotency, {
      create: (receiptFor) => create(c, { asked, request, receiptFor }, deps),
      present: (batch) => toAsciiJson(presentBatch(batch, NO_DETAILS)),
      ...asking(fingerprinted(asked)),
    });
  });

  app.get("/v1/batches", async (c) => {
    const asked = batchQuery(c);
    using _search = asked.filter === undefined ? null : deps.searches.acquire(asked.project);
    return await answerPage(c, asked, { read, present, isSearch: asked.filter !== undefined });
  });

  app.get("/v1/batches/:id", async (c) =>
    answerJson(c, await presentOne(await batches.find(scopedIdOf(c)))),
  );

  app.post("/v1/batches/:id", async (c) => {
    assertKnownParams(c, []);
    const { budget, priority, metadata } = parseBody(UpdateBatch, await readJson(c));
    const batch = await batches.update(scopedIdOf(c), {
      ...(budget !== undefined && { budget }),
      ...(priority !== undefined && { priority: priority ?? PRIORITIES.default }),
      ...(metadata !== undefined && { metadata }),
    });
    return answerJson(c, await presentOne(batch));
  });

  app.delete("/v1/batches/:id", async (c) => {
    assertKnownParams(c, ["files"]);
    const files = c.req.query("files");
    if (files !== undefined && files !== "input") throw unsupportedValue("files", files, ["input"]);
    const withInput = files === "input";
    const { id, deletedInputId } = await batches.delete(scopedIdOf(c), { withInput });
    if (deletedInputId !== null) {
      c.set("fileChange", { action: "file.delete", id: deletedInputId });
    }
    return answerJson(c, { id, object: "batch", deleted: true });
  });

  // Clients send no body, `{}`, or an empty one under a JSON content type. A body that is never read cannot be
  // malformed.
  app.post("/v1/batches/:id/cancel", async (c) =>
    answerJson(c, await presentOne(await batches.cancel(scopedIdOf(c)))),
  );

  app.post("/v1/batches/:id/pause", async (c) => {
    await assertNoOptions(c);
    return answerJson(c, await presentOne(await batches.pause(scopedIdOf(c))));
  });

  app.post("/v1/batches/:id/resume", async (c) => {
    await assertNoOptions(c);
    return answerJson(c, await presentOne(await batches.resume(scopedIdOf(c))));
  });
}

type AskedBatch = { readonly request: Omit<BatchRequest, "origin" | "inputFileId"> } & (
  | { readonly kind: "input"; readonly inputFileId: UntrustedId<"file"> }
  | { readonly kind: "from"; readonly from: SourceRequest }
  | { readonly kind: "place"; readonly place: InputPlace }
);

/** What makes two requests the same. Without deliveries it is what versions that knew none have stored. */
function fingerprinted({ request: { deliver, ...request }, ...asked }: AskedBatch): unknown {
  const places = deliver.length === 0 ? {} : { deliver: deliver.map(withoutSecrets) };
  return { ...asked, request: { ...request, ...places } };
}

interface Creating {
  readonly asked: AskedBatch;
  readonly request: Omit<BatchRequest, "inputFileId">;
  readonly receiptFor: ReceiptFor<Batch> | undefined;
}

function create(
  c: AppContext,
  { asked, request, receiptFor }: Creating,
  deps: BatchRoutesDeps,
): Promise<Batch> {
  const project = c.get("project");
  assertMayTakeOut(c, request.deliver);
  switch (asked.kind) {
    case "input": {
      const { inputFileId } = asked;
      return deps.batches.create(project, { ...request, inputFileId }, receiptFor);
    }
    case "from":
      return deps.derivedBatches.create(project, { ...request, from: asked.from }, receiptFor);
    case "place":
      return createOfPlace(c, { place: asked.place, request, receiptFor }, deps);
  }
}

/** Reads the request from the body. The origin is separate, because a repeated request has another one. */
function batchRequest(json: unknown): AskedBatch {
  const body = parseBody(CreateBatch, withFullEndpoint(json));
  const request = {
    endpoint: body.endpoint,
    completionWindow: body.completion_window ?? DEFAULT_COMPLETION_WINDOW,
    metadata: body.metadata ?? null,
    outputExpiresAfterSeconds: body.output_expires_after?.seconds ?? null,
    priority: body.x_batchd?.priority ?? PRIORITIES.default,
    budget: body.x_batchd?.budget ?? null,
    defaultModel: body.x_batchd?.default_model ?? null,
    sample: body.x_batchd?.sample ?? null,
    dedupe: body.x_batchd?.dedupe ?? null,
    source: null,
    deliver: (body.x_batchd?.deliver ?? []).map((each, i) =>
      deliveryRequest(each, `x_batchd.deliver.${i}.`),
    ),
  };
  const from = body.x_batchd?.from ?? null;
  // Clients in typed languages send null for a field that is left out.
  const inputFileId = (body.input_file_id ?? null) as UntrustedId<"file"> | null;
  const place = body.x_batchd?.input ?? null;
  if (place !== null) {
    if (from !== null) throw oneInput("x_batchd.from", "x_batchd.input");
    if (inputFileId !== null) throw oneInput("input_file_id", "x_batchd.input");
    return { request, kind: "place", place };
  }
  if (from === null) {
    if (inputFileId === null) throw withoutInput(body.input_file_id === null);
    return { request, kind: "input", inputFileId };
  }
  if (inputFileId !== null) throw oneInput("input_file_id", "x_batchd.from");
  const batchId = from.batch as UntrustedId<"batch">;
  const template = from.template ?? null;
  const lines = from.lines ?? (template === null ? "failed" : "succeeded");
  const source = { batchId, lines, isMerged: from.merge ?? false, template };
  assertTemplate(source);
  return { request, kind: "from", from: source };
}

const withoutInput = (isNull: boolean) =>
  isNull ? wrongType("input_file_id", "a string", "null") : missingParameter("input_file_id");

const oneInput = (param: string, other: string) =>
  new PublicError(
    "invalid_value",
    `Invalid '${param}': a batch with '${other}' takes its input from there.`,
    { param },
  );

/** Completes the endpoint, because Azure's clients leave out `/v1`. */
function withFullEndpoint(json: unknown): unknown {
  if (typeof json !== "object" || json === null || !("endpoint" in json)) return json;
  const given = json.endpoint;
  // Only a string is safe here: another value may define its own conversion to text, and throw.
  if (typeof given !== "string") return json;
  return { ...json, endpoint: fullEndpoint(given) };
}

function batchQuery(c: AppContext): BatchQuery {
  return {
    project: c.get("project"),
    limit: limitParam(c, BATCH_PAGE),
    after: textParam(c, "after") as UntrustedId<"batch"> | null,
    filter: batchFilter(c),
  };
}
