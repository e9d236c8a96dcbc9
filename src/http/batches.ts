import type { Hono } from "hono";
import type { Batch, BatchId, FileId } from "../batch/batch.ts";
import type { Batches, BatchRequest } from "../batches.ts";
import { BATCH_ENDPOINTS, BATCH_PAGE, CreateBatch } from "../contract/batch.ts";
import type { Idempotency } from "../idempotency.ts";
import type { BatchQuery } from "../store/store.ts";
import { integerTooLarge, integerTooSmall, parseBody } from "./body.ts";
import type { AppContext, AppEnv } from "./context.ts";
import { answerOnce } from "./idempotency.ts";
import { answerJson, readJson, toAsciiJson } from "./json.ts";
import { presentBatch, presentPage } from "./present.ts";
import { integerParam, textParam } from "./query.ts";

export interface BatchRoutesDeps {
  readonly batches: Batches;
  readonly idempotency: Idempotency;
}

export function mountBatches(app: Hono<AppEnv>, { batches, idempotency }: BatchRoutesDeps): void {
  app.post("/v1/batches", async (c) => {
    const request = batchRequest(await readJson(c.env.incoming));
    return answerOnce<Batch>(c, idempotency, {
      create: (receiptFor) => batches.create(c.get("project"), request, receiptFor),
      present: (batch) => toAsciiJson(presentBatch(batch)),
      askedFor: () => request,
      reread: async () => request,
    });
  });

  app.get("/v1/batches", async (c) =>
    answerJson(c, presentPage(await batches.list(batchQuery(c)), presentBatch)),
  );

  app.get("/v1/batches/:id", async (c) =>
    answerJson(c, presentBatch(await batches.find(c.get("project"), batchId(c)))),
  );

  // Clients send no body, an empty one under a JSON content type, or `{}`: it is never read.
  app.post("/v1/batches/:id/cancel", async (c) =>
    answerJson(c, presentBatch(await batches.cancel(c.get("project"), batchId(c)))),
  );
}

const batchId = (c: AppContext) => c.req.param("id") as BatchId;

function batchRequest(json: unknown): BatchRequest {
  const body = parseBody(CreateBatch, withFullEndpoint(json));
  return {
    inputFileId: body.input_file_id as FileId,
    endpoint: body.endpoint,
    metadata: body.metadata ?? null,
    outputExpiresAfterSeconds: body.output_expires_after?.seconds ?? null,
    priority: body.x_batchd?.priority ?? 0,
    defaultModel: body.x_batchd?.default_model ?? null,
    traceparent: null,
  };
}

/** Azure's clients leave out `/v1`. */
function withFullEndpoint(json: unknown): unknown {
  if (typeof json !== "object" || json === null || !("endpoint" in json)) return json;
  const given = json.endpoint;
  // Anything else must not be turned into text: it may say how, and throw.
  if (typeof given !== "string") return json;
  const endpoint = BATCH_ENDPOINTS.find((each) => each === `/v1${given}`);
  return endpoint === undefined ? json : { ...json, endpoint };
}

function batchQuery(c: AppContext): BatchQuery {
  const limit = integerParam(c, "limit") ?? BATCH_PAGE.default;
  if (limit > BATCH_PAGE.max) throw integerTooLarge("limit", limit, BATCH_PAGE.max);
  if (limit < BATCH_PAGE.min) throw integerTooSmall("limit", limit, BATCH_PAGE.min);
  return {
    project: c.get("project"),
    limit,
    after: textParam(c, "after") as BatchId | null,
  };
}
