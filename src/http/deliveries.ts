/**
 * The routes of deliveries. The credentials of a client's bucket come in here, and neither an answer nor a fingerprint of a
 * request may hold them.
 */
import type { Deliveries } from "../api/deliveries.ts";
import type { DeliveryRequest } from "../api/delivery-requests.ts";
import type { Idempotency } from "../api/idempotency.ts";
import type { UntrustedId } from "../batch/batch.ts";
import type { Delivery } from "../batch/delivery.ts";
import { CreateDelivery, DELIVERY_PAGE, type DeliveryObject } from "../contract/delivery.ts";
import { toSeconds, toSecondsOrNull } from "../contract/unix-seconds.ts";
import { PublicError } from "../errors.ts";
import { missingParameter, parseBody } from "./body.ts";
import { type AppContext, scopedIdOf } from "./context.ts";
import { answerOnce, asking } from "./idempotency.ts";
import { answerJson, readJson, toAsciiJson } from "./json.ts";
import { answerPage } from "./list.ts";
import { assertKnownParams, limitParam, textParam } from "./query.ts";
import { assertScope, type Routes } from "./routes.ts";

export interface DeliveryRoutesDeps {
  readonly deliveries: Deliveries;
  readonly idempotency: Idempotency;
}

export function mountDeliveries(
  app: Routes,
  { deliveries, idempotency }: DeliveryRoutesDeps,
): void {
  app.post("/v1/batches/:id/deliveries", async (c) => {
    const request = deliveryRequest(parseBody(CreateDelivery, await readJson(c)), "");
    assertMayTakeOut(c, [request]);
    return answerOnce<Delivery>(c, idempotency, {
      create: (receiptFor) => deliveries.create(scopedIdOf(c), request, receiptFor),
      present: (delivery) => toAsciiJson(presentDelivery(delivery)),
      ...asking(withoutSecrets(request)),
    });
  });

  app.get("/v1/batches/:id/deliveries", async (c) => {
    assertKnownParams(c, ["limit", "after"]);
    const query = {
      batch: scopedIdOf<"batch">(c),
      limit: limitParam(c, DELIVERY_PAGE),
      after: textParam(c, "after") as UntrustedId<"delivery"> | null,
    };
    return answerPage(c, query, {
      read: (page) =>
        deliveries.list({ ...page, after: page.after as UntrustedId<"delivery"> | null }),
      present: presentDelivery,
    });
  });

  app.get("/v1/batches/:id/deliveries/:delivery", async (c) =>
    answerJson(c, presentDelivery(await deliveries.find(scopedIdOf(c), deliveryIdOf(c)))),
  );

  // The body is never read, as with batches.
  app.post("/v1/batches/:id/deliveries/:delivery/cancel", async (c) =>
    answerJson(c, presentDelivery(await deliveries.cancel(scopedIdOf(c), deliveryIdOf(c)))),
  );
}

/** The id is only ever looked up together with the batch of the path and the project of the key. */
const deliveryIdOf = (c: AppContext) => (c.req.param("delivery") ?? "") as UntrustedId<"delivery">;

/** The keys that come with `kind`. */
const BUCKET_KEYS = [
  "bucket",
  "prefix",
  "region",
  "endpoint",
  "force_path_style",
  "access_key_id",
  "secret_access_key",
  "session_token",
] as const;

/** Reads a request. `path` is what the names of its parameters begin with. */
export function deliveryRequest(body: CreateDelivery, path: string): DeliveryRequest {
  const common = { path: body.path ?? null, format: body.format ?? ("jsonl" as const) };
  if (body.kind == null) {
    const stray = BUCKET_KEYS.find((key) => body[key] != null);
    if (stray !== undefined) throw onlyWith(`${path}${stray}`, "'kind'");
    if (body.location == null) throw missingParameter(`${path}location`);
    return { ...common, location: body.location, s3: null };
  }
  if (body.location != null) throw onlyWith(`${path}location`, "no 'kind'");
  const required = (key: "bucket" | "region" | "access_key_id" | "secret_access_key") => {
    const value = body[key];
    if (value == null) throw missingParameter(`${path}${key}`);
    return value;
  };
  const endpoint = body.endpoint ?? null;
  const s3 = {
    bucket: required("bucket"),
    prefix: body.prefix ?? "",
    region: required("region"),
    endpoint,
    forcePathStyle: body.force_path_style ?? endpoint !== null,
    accessKeyId: required("access_key_id"),
    secretAccessKey: required("secret_access_key"),
    sessionToken: body.session_token ?? null,
  };
  return { ...common, location: null, s3 };
}

const onlyWith = (param: string, other: string) =>
  new PublicError("invalid_value", `Invalid '${param}': it goes with ${other}.`, { param });

/** The owner of a bucket reads there what a key without `read` may not: results, or answers to any input of the project. */
export function assertMayTakeOut(c: AppContext, requests: readonly DeliveryRequest[]): void {
  if (requests.some(({ s3 }) => s3 !== null)) assertScope(c, "read");
}

/** What makes two requests the same. Only a hash of it is stored, and that has no secrets either. */
export function withoutSecrets({ s3, ...request }: DeliveryRequest): unknown {
  if (s3 === null) return request;
  const { secretAccessKey: _, sessionToken: __, ...bucket } = s3;
  return { ...request, s3: bucket };
}

const presentDelivery = (delivery: Delivery): DeliveryObject => ({
  id: delivery.id,
  object: "batch.delivery",
  batch_id: delivery.batchId,
  location: delivery.location,
  s3: delivery.s3 && {
    bucket: delivery.s3.bucket,
    prefix: delivery.s3.prefix,
    region: delivery.s3.region,
    endpoint: delivery.s3.endpoint,
  },
  path: delivery.path,
  format: delivery.format,
  status: delivery.status,
  error: delivery.error && { code: delivery.error.code, message: delivery.error.message },
  address: delivery.address,
  attempts: delivery.attemptCount,
  created_at: toSeconds(delivery.createdAtMs),
  next_attempt_at: toSecondsOrNull(delivery.nextAttemptAtMs),
  ended_at: toSecondsOrNull(delivery.endedAtMs),
});
