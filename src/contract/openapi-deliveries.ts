/** The routes of deliveries, with their requests and answers. */
import { z } from "zod";
import type { ZodOpenApiPathsObject } from "zod-openapi";
import { CreateDelivery, DELIVERY_PAGE, DeliveryObject, DeliveryPage } from "./delivery.ts";
import { IdempotencyHeader } from "./idempotency.ts";
import {
  answer,
  answerOnce,
  BATCH_FAILURES,
  BATCH_STATUS_FAILURES,
  BODY_TOO_LARGE,
  IDEMPOTENCY_FAILURES,
  jsonBody,
} from "./openapi-answers.ts";
import { BATCH_EXAMPLES, pageExample } from "./openapi-examples.ts";
import { pageQuery } from "./page.ts";

const DELIVERY_EXAMPLE: DeliveryObject = {
  id: "delivery_5f0c2a9be1d84c36a7b05d9e8f214c73",
  object: "batch.delivery",
  batch_id: BATCH_EXAMPLES.completed.id,
  location: "lake",
  s3: null,
  path: "evals/nightly",
  format: "csv",
  status: "pending",
  error: null,
  address: null,
  attempts: 0,
  created_at: BATCH_EXAMPLES.completed.created_at + 3_600,
  next_attempt_at: BATCH_EXAMPLES.completed.created_at + 3_600,
  ended_at: null,
};
const DELIVERED_EXAMPLE: DeliveryObject = {
  ...DELIVERY_EXAMPLE,
  status: "delivered",
  address: `s3://my-results/runs/evals/nightly/${BATCH_EXAMPLES.completed.id}/`,
  attempts: 1,
  next_attempt_at: null,
  ended_at: DELIVERY_EXAMPLE.created_at + 4,
};

const batchId = { batch_id: z.string().meta({ example: BATCH_EXAMPLES.completed.id }) };
const bothIds = z.object({
  ...batchId,
  delivery_id: z.string().meta({ example: DELIVERY_EXAMPLE.id }),
});

export const DELIVERY_PATHS: ZodOpenApiPathsObject = {
  "/v1/batches/{batch_id}/deliveries": {
    post: {
      operationId: "createDelivery",
      summary: "Deliver the results of a batch",
      description:
        "Takes the results of an ended batch to a location of the server, or to an S3 bucket with credentials of your own, for which the key needs the scope `read`, too. Any number of times; to one place, one after the other.",
      requestParams: { path: z.object(batchId), header: IdempotencyHeader },
      requestBody: jsonBody(CreateDelivery, {
        location: "lake",
        path: "evals/nightly",
        format: "csv",
      }),
      responses: {
        "200": answerOnce("The new delivery.", DeliveryObject, { created: DELIVERY_EXAMPLE }),
        ...BATCH_FAILURES,
        "413": BODY_TOO_LARGE,
        ...IDEMPOTENCY_FAILURES,
      },
    },
    get: {
      operationId: "listDeliveries",
      summary: "List the deliveries of a batch, newest first",
      requestParams: { path: z.object(batchId), query: z.object(pageQuery(DELIVERY_PAGE)) },
      responses: {
        "200": answer("A page of deliveries.", DeliveryPage, {
          page: pageExample(DELIVERED_EXAMPLE),
        }),
        ...BATCH_FAILURES,
      },
    },
  },
  "/v1/batches/{batch_id}/deliveries/{delivery_id}": {
    get: {
      operationId: "retrieveDelivery",
      summary: "Look at a delivery",
      requestParams: { path: bothIds },
      responses: {
        "200": answer("The delivery.", DeliveryObject, { delivered: DELIVERED_EXAMPLE }),
        ...BATCH_FAILURES,
      },
    },
  },
  "/v1/batches/{batch_id}/deliveries/{delivery_id}/cancel": {
    post: {
      operationId: "cancelDelivery",
      summary: "Cancel a delivery",
      description:
        "Ends a delivery that waits at once. One that is `delivering` gets the error `cancelled` at once, and is `failed` when its server has stopped and removed what was half there; when its files had all arrived by then, it is `delivered`. A body is ignored.",
      requestParams: { path: bothIds },
      responses: {
        "200": answer("The delivery, with the error `cancelled`.", DeliveryObject, {
          cancelled: {
            ...DELIVERY_EXAMPLE,
            status: "failed",
            error: { code: "cancelled", message: "The delivery was cancelled by its client." },
            next_attempt_at: null,
            ended_at: DELIVERY_EXAMPLE.created_at + 60,
          },
        }),
        ...BATCH_STATUS_FAILURES,
      },
    },
  },
};
