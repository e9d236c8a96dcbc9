/** The schemas of deliveries: the request, the object and the statuses. No other file may repeat their lists. */
import { z } from "zod";
import { pageOf } from "./page.ts";
import { RESULT_FORMATS } from "./results.ts";
import { boundedText } from "./text.ts";
import { UnixSeconds } from "./unix-seconds.ts";

const DELIVERY_STATUSES = ["pending", "delivering", "delivered", "failed"] as const;
export type DeliveryStatus = (typeof DELIVERY_STATUSES)[number];

/** The statuses that are stored. A pending delivery with a holder is shown as `delivering`. */
export const KEPT_DELIVERY_STATUSES = ["pending", "delivered", "failed"] as const;
export type KeptDeliveryStatus = (typeof KEPT_DELIVERY_STATUSES)[number];

/** The most deliveries that a batch can be created with. */
export const MAX_DELIVERIES_AT_CREATION = 8;

const MAX_NAME = 128;
const MAX_PATH = 1_024;
const MAX_CREDENTIAL = 8_192;

const text = (maxLength: number) => boundedText(maxLength).min(1).nullable().optional();

export const CreateDelivery = z
  .strictObject({
    location: text(MAX_NAME).describe(
      "The name of a location that the server has; left out only with `kind`.",
    ),
    path: text(MAX_PATH).describe(
      "The folder below the location. The results are in a folder below it that is named after the batch.",
    ),
    format: z
      .enum(RESULT_FORMATS)
      .nullable()
      .optional()
      .describe("The form of the results. Left out: `jsonl`, as the files have them."),
    kind: z
      .enum(["s3"])
      .nullable()
      .optional()
      .describe("A bucket with credentials of your own, in place of `location`."),
    bucket: text(MAX_NAME),
    prefix: boundedText(MAX_PATH)
      .nullable()
      .optional()
      .describe("What the names of all objects begin with."),
    region: text(MAX_NAME),
    endpoint: text(MAX_PATH).describe("The address of the server; left out: AWS in that region."),
    force_path_style: z
      .boolean()
      .nullable()
      .optional()
      .describe(
        "Whether the bucket is in the path of addresses, not in their host. Left out: yes, if there is an `endpoint`.",
      ),
    access_key_id: text(MAX_CREDENTIAL),
    secret_access_key: text(MAX_CREDENTIAL).describe(
      "Kept encrypted until the delivery has ended, and shown nowhere.",
    ),
    session_token: text(MAX_CREDENTIAL),
  })
  .meta({ id: "CreateDelivery" });
export type CreateDelivery = z.infer<typeof CreateDelivery>;

export const DeliveryObject = z
  .object({
    id: z.string().describe("`delivery_` and 32 hexadecimal digits."),
    object: z.literal("batch.delivery"),
    batch_id: z.string(),
    location: z.string().nullable().describe("Null for a bucket that the client named."),
    s3: z
      .object({
        bucket: z.string(),
        prefix: z.string(),
        region: z.string(),
        endpoint: z.string().nullable(),
      })
      .nullable()
      .describe("The bucket that the client named, without its credentials; null for a location."),
    path: z.string().nullable(),
    format: z.enum(RESULT_FORMATS),
    status: z
      .enum(DELIVERY_STATUSES)
      .describe(
        "`pending`: it waits for the end of the batch, for its turn or for its next attempt. `delivering`: files are on their way. `failed`: it is not tried again.",
      ),
    error: z
      .object({ code: z.string(), message: z.string() })
      .nullable()
      .describe("The reason why the last attempt failed."),
    address: z
      .string()
      .nullable()
      .describe("Where the results are, for people; null until they are there."),
    attempts: z.int().describe("The number of attempts so far."),
    created_at: UnixSeconds,
    next_attempt_at: UnixSeconds.nullable().describe(
      "Null while the batch runs, and once the delivery has ended.",
    ),
    ended_at: UnixSeconds.nullable(),
  })
  .meta({ id: "Delivery" });
export type DeliveryObject = z.infer<typeof DeliveryObject>;

export const DeliveryPage = pageOf(DeliveryObject).meta({ id: "DeliveryPage" });

/** The page sizes of `GET /v1/batches/{id}/deliveries`. */
export const DELIVERY_PAGE = { min: 0, max: 100, default: 20 } as const;
