/**
 * The events that batchd sends to the endpoints of its configuration. docs/webhooks.md explains how to receive them.
 */
import { z } from "zod";
import type { ZodOpenApiPathsObject } from "zod-openapi";
import { type BatchEvent, EVENT_TYPES, type EventType } from "./event.ts";
import { jsonBody } from "./openapi-answers.ts";
import { BATCH_EXAMPLES } from "./openapi-examples.ts";

export const BatchEventObject = z
  .object({
    object: z.literal("event"),
    id: z.string().describe("The id of the event, the same in every attempt to deliver it."),
    type: z.enum(EVENT_TYPES),
    created_at: z.int().describe("Unix seconds at which the batch became final."),
    data: z.object({
      id: z.string().describe("The id of the batch."),
      x_batchd: z
        .object({
          request_counts: z
            .object({ total: z.int(), completed: z.int(), failed: z.int() })
            .describe("The counts of the lines of the batch."),
        })
        .describe("The fields that batchd adds to OpenAI's event."),
    }),
  })
  .meta({ id: "BatchEvent" }) satisfies z.ZodType<BatchEvent>;

const SUMMARIES: Readonly<Record<EventType, string>> = {
  "batch.completed": "A batch has its answers",
  "batch.failed": "A batch has an input file with faults",
  "batch.expired": "A batch ran out of time, and keeps the answers it has",
  "batch.cancelled": "A batch was cancelled, and keeps the answers it has",
};

const DeliveryHeaders = z.object({
  "webhook-id": z.string().meta({
    description: "The id of the event, the same in every attempt to deliver it.",
    example: "wh_0f7c2b9ae1d34c5896a1b20c3d4e5f60",
  }),
  "webhook-timestamp": z.string().meta({
    description: "Unix seconds of this attempt.",
    example: "1767225632",
  }),
  "webhook-signature": z.string().meta({
    description:
      "`v1,` and the HMAC-SHA256 of `<webhook-id>.<webhook-timestamp>.<body>`, in base64, under the secret of the endpoint.",
    example: "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=",
  }),
});

const eventExample = (type: EventType): BatchEvent => ({
  object: "event",
  id: "evt_7d1f0b3c9e8a42d6b5a4f3e2d1c0b9a8",
  type,
  created_at: BATCH_EXAMPLES.completed.completed_at,
  data: {
    id: BATCH_EXAMPLES.created.id,
    x_batchd: { request_counts: BATCH_EXAMPLES.completed.request_counts },
  },
});

const operationIdOf = (type: EventType) => `on${type.replace(".", "_")}`;

export const WEBHOOKS: ZodOpenApiPathsObject = Object.fromEntries(
  EVENT_TYPES.map((type) => [
    type,
    {
      post: {
        operationId: operationIdOf(type),
        summary: SUMMARIES[type],
        security: [],
        requestParams: { header: DeliveryHeaders },
        requestBody: jsonBody(BatchEventObject, eventExample(type)),
        responses: {
          "2XX": {
            description:
              "The event was taken. After any other answer it is tried again, for up to 72 hours.",
          },
        },
      },
    },
  ]),
);
