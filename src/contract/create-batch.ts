/**
 * The requests that make and change a batch, with batchd's own fields in `x_batchd`. A field of OpenAI
 * must keep its name and its meaning. Every other field belongs into `x_batchd`.
 */
import { z } from "zod";
import { BatchEndpoint } from "./batch.ts";
import { SOURCE_LINES } from "./batch-extension.ts";
import { CreateDelivery, MAX_DELIVERIES_AT_CREATION } from "./delivery.ts";
import { ExpiresAfter } from "./expires-after.ts";
import { InputPlace } from "./input-place.ts";
import { JsonObject, TextsObject } from "./json-object.ts";
import { Decimal } from "./price.ts";
import { boundedText, ID_MAX_LENGTH } from "./text.ts";
import { DEFAULT_COMPLETION_WINDOW } from "./window.ts";

export const METADATA_LIMITS = { pairs: 16, keyLength: 64, valueLength: 512 } as const;

/** The range of `priority`, which makes the share of a batch larger or smaller than the share of its neighbours. */
export const PRIORITIES = { min: -10, max: 10, default: 0 } as const;

/** The range of `sample`. */
export const SAMPLE_LINES = { min: 1, max: 1_000 } as const;

const RetriedLines = z
  .strictObject({
    batch: boundedText(ID_MAX_LENGTH).describe("The batch whose lines are run again."),
    lines: z
      .enum(SOURCE_LINES)
      .nullable()
      .optional()
      .describe(
        "`failed`: those without an answer, also because the batch expired or was cancelled. Left out: `succeeded` with a template, else `failed`.",
      ),
    merge: z
      .boolean()
      .nullable()
      .optional()
      .describe("Whether the result files have all lines of that batch, in its order."),
    template: JsonObject.nullable()
      .optional()
      .describe(
        "The body of each line, in which `{{custom_id}}`, `{{input.…}}` (a path in the body of the line) and `{{output.…}}` (a path in the body of its answer) are filled in: as a value when the placeholder is the whole string, else as text. At most 32,768 bytes.",
      ),
  })
  .meta({ id: "RetriedLines" });

/** The longest name of a model, in bytes of UTF-8. Each batch stores one, and it is read again and again. */
export const MAX_MODEL_BYTES = 1024;

const PRIORITY_MEANING =
  "The share of the batch beside others of its project: the higher, the larger.";
const BUDGET_MEANING =
  "The most that the batch may cost, in the currency of the prices. It pauses before the line that might exceed it.";

const Priority = z.int().min(PRIORITIES.min).max(PRIORITIES.max).nullable().optional();

/** batchd's own fields of the request. They are nested so that no client takes one for a field of OpenAI. */
const CreateBatchExtension = z
  .strictObject({
    default_model: boundedText(MAX_MODEL_BYTES)
      .min(1)
      .nullable()
      .optional()
      .describe(
        "The model for lines whose `model` is empty. Left out, the server's configured default counts.",
      ),
    priority: Priority.describe(PRIORITY_MEANING),
    input: InputPlace.nullable()
      .optional()
      .describe("A file in a location to copy and to run, in place of `input_file_id`."),
    from: RetriedLines.nullable()
      .optional()
      .describe(
        "Lines of another batch to run, in place of `input_file_id`. The batch waits in `validating` until that one has ended.",
      ),
    sample: z
      .int()
      .min(SAMPLE_LINES.min)
      .max(SAMPLE_LINES.max)
      .nullable()
      .optional()
      .describe(
        "The number of lines, spread over the file, to run before the batch pauses. Resuming it runs the rest.",
      ),
    budget: Decimal.nullable().optional().describe(BUDGET_MEANING),
    dedupe: z
      .boolean()
      .nullable()
      .optional()
      .describe(
        "Whether lines whose `body` has the same bytes are sent once and all get the answer. A retry takes it over from its source.",
      ),
    deliver: z
      .array(CreateDelivery)
      .max(MAX_DELIVERIES_AT_CREATION)
      .nullable()
      .optional()
      .describe(
        "Where the results go once the batch has ended, with those of an expired or cancelled one. For a bucket of your own the key needs the scope `read`, too.",
      ),
  })
  .meta({ id: "CreateBatchExtension" });

const Metadata = TextsObject.nullable().describe(
  "At most 16 pairs; keys of at most 64, values of at most 512 characters.",
);

export const CreateBatch = z
  .strictObject({
    input_file_id: boundedText(ID_MAX_LENGTH)
      .nullable()
      .optional()
      .describe("The input; left out only with `x_batchd.from` or `x_batchd.input`."),
    endpoint: BatchEndpoint,
    completion_window: z
      .string()
      .nullable()
      .default(DEFAULT_COMPLETION_WINDOW)
      .describe("`24h`, unless the server allows more (`limits.completion_windows`)."),
    metadata: Metadata.optional(),
    output_expires_after: ExpiresAfter.nullable().optional(),
    x_batchd: CreateBatchExtension.nullable().optional(),
  })
  .meta({ id: "CreateBatch" });

/** What a client may change of a batch. A field that is missing stays as it is. */
export const UpdateBatch = z
  .strictObject({
    budget: Decimal.nullable().optional().describe(`${BUDGET_MEANING} Null takes it away.`),
    priority: Priority.describe(`${PRIORITY_MEANING} Null makes it ${PRIORITIES.default}.`),
    metadata: Metadata.optional(),
  })
  .meta({ id: "UpdateBatch" });
