/** The list of batches: how it is filtered and paged. The filters are not OpenAI's. */
import { z } from "zod";
import { BatchEndpoint, BatchStatus } from "./batch.ts";
import { METADATA_LIMITS } from "./create-batch.ts";
import { LAST_SECOND } from "./unix-seconds.ts";

/** The range of `created_after`. */
export const CREATED_AFTER = { min: 0, max: LAST_SECOND } as const;

/** The longest value of metadata, and so of what is looked for. */
export const SEARCH_MAX_LENGTH = METADATA_LIMITS.valueLength;

/** The filters of `GET /v1/batches`, which are not OpenAI's. */
export const batchFilters = {
  status: BatchStatus.optional(),
  endpoint: BatchEndpoint.optional(),
  model: z.string().optional().describe("The model of the batch, as its `model` has it."),
  created_after: z
    .int()
    .min(CREATED_AFTER.min)
    .max(CREATED_AFTER.max)
    .optional()
    .describe("Unix seconds: only batches with a later `created_at`."),
  metadata: z
    .record(z.string().max(METADATA_LIMITS.keyLength), z.string().max(METADATA_LIMITS.valueLength))
    .optional()
    .meta({
      maxProperties: METADATA_LIMITS.pairs,
      description:
        "Only batches whose metadata have these values, written as `metadata[team]=search`; may be given for several keys.",
      param: { style: "deepObject", explode: true },
    }),
  search: z
    .string()
    .max(SEARCH_MAX_LENGTH)
    .optional()
    .describe(
      "Only batches with this text in their id, in a value of their metadata, or in the name of their input file. It is taken as it is, without wildcards; small and capital letters from A to Z count as the same.",
    ),
};

/** The page sizes of `GET /v1/batches`. */
export const BATCH_PAGE = { min: 0, max: 100, default: 20 } as const;
