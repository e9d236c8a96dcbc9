/** The schemas of `GET /v1/usage`: what answers took and cost. */
import { z } from "zod";
import { Money } from "./price.ts";

export const USAGE_GROUPS = ["project", "model", "day"] as const;
export type UsageGroup = (typeof USAGE_GROUPS)[number];

export const USAGE_FORMATS = ["json", "csv"] as const;

/** The longest range of days. */
export const USAGE_MAX_DAYS = 366;
/** The days that are summed up when the request names none, with the present one. */
export const USAGE_DEFAULT_DAYS = 30;

const DAY = z.string().meta({ example: "2026-01-31" });

export const UsageQuery = {
  group_by: z
    .string()
    .optional()
    .describe(
      "`project`, `model` and `day`, or some of them, with commas between; `day` if left out.",
    ),
  from: z
    .string()
    .optional()
    .describe("The first day in UTC, such as `2026-01-31`; 30 days back if left out."),
  to: z.string().optional().describe("The last day in UTC; today if left out. At most 366 days."),
  project: z
    .string()
    .optional()
    .describe(
      "Sums up one project only. A key without the scope `admin` sees its own project alone.",
    ),
  format: z.enum(USAGE_FORMATS).optional(),
};

export const UsageRow = z
  .object({
    object: z.literal("usage"),
    project: z.string().nullable().describe("Null unless it is grouped by."),
    model: z
      .string()
      .nullable()
      .describe("The model as clients name it. After the first 100 of a project it is `other`."),
    day: DAY.nullable(),
    requests: z.int().describe("Lines with an answer; failed ones do not count."),
    input_tokens: z.int(),
    cached_input_tokens: z.int().describe("Part of `input_tokens`."),
    output_tokens: z.int(),
    cost: z
      .object({ currency: z.string(), amount: Money })
      .nullable()
      .describe("Null for answers without a price, which have rows of their own."),
  })
  .meta({ id: "UsageRow" });
export type UsageRow = z.infer<typeof UsageRow>;

export const UsageList = z
  .object({ object: z.literal("list"), data: z.array(UsageRow) })
  .meta({ id: "UsageList" });
export type UsageList = z.infer<typeof UsageList>;

export const BatchCost = z
  .object({
    currency: z.string(),
    so_far: Money.describe("What the answers in the journal cost, exact to the last digit."),
    projected: Money.nullable().describe(
      "The same for all lines, if the others cost as much as those before, rounded up to a millionth; null before the first answer.",
    ),
  })
  .meta({ id: "BatchCost" });
