/** The schemas of the routes that show the lines of a batch. */
import { z } from "zod";
import { RESULT_LIMITS } from "./results.ts";

export const LINE_STATUSES = ["succeeded", "failed", "waiting"] as const;
export type LineStatus = (typeof LINE_STATUSES)[number];

/** The page sizes of `GET /v1/batches/{id}/lines`. */
export const LINE_PAGE = { min: 1, max: 100, default: 20 } as const;
/** The longest `custom_id` that is looked for. */
export const CUSTOM_ID_MAX_LENGTH = 512;

const { min, max } = RESULT_LIMITS.afterLine;

export const LineQueryParams = z.object({
  status: z.enum(LINE_STATUSES).optional().describe("Only lines that are in this state."),
  custom_id: z.string().optional().describe("Only lines with this id."),
  after_line: z.int().min(min).max(max).optional().describe("Only lines with a higher number."),
  limit: z.int().min(LINE_PAGE.min).max(LINE_PAGE.max).default(LINE_PAGE.default),
});

const Row = z.record(z.string(), z.unknown()).nullable();

export const BatchLineList = z
  .object({
    object: z.literal("list"),
    data: z.array(
      z.object({
        line: z.int().describe("The line of the input, from 1."),
        custom_id: z.string().nullable(),
        status: z
          .enum(LINE_STATUSES)
          .describe("`failed` is also said of lines that never ran in a batch that has ended."),
        request: Row.describe("The line of the input; null when the input was deleted."),
        response: Row.describe("The `response` of its row in a result file."),
        error: Row.describe("The `error` of its row in a result file."),
      }),
    ),
    has_more: z
      .boolean()
      .describe("Whether there may be more. A page may have fewer lines than `limit`, or none."),
    last_line: z
      .int()
      .describe("The last line that was looked at: `after_line` for the next page."),
  })
  .meta({ id: "BatchLineList" });

export const FailureList = z
  .object({
    object: z.literal("list"),
    data: z.array(
      z.object({
        status_code: z.int().nullable(),
        code: z.string().nullable(),
        lines: z.int().describe("The number of lines."),
        examples: z
          .array(
            z.object({
              line: z.int(),
              custom_id: z.string().nullable(),
              message: z.string().nullable().describe("The message of the error, shortened."),
            }),
          )
          .describe("The first lines of the group: at most 3, of those read first."),
      }),
    ),
    has_more: z.literal(false),
  })
  .meta({ id: "FailureList" });
