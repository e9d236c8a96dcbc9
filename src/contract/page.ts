/** The schemas of list pages. */
import { z } from "zod";

/** One page of a list. The cursor for the next page is the `id` of the last object in `data`. */
export const pageOf = <T extends z.ZodType>(item: T) =>
  z.object({
    object: z.literal("list"),
    data: z.array(item),
    first_id: z.string().nullable(),
    last_id: z.string().nullable(),
    has_more: z.boolean(),
  });

interface PageLimits {
  readonly min: number;
  readonly max: number;
  readonly default: number;
}

/** The query parameters of a list. */
export const pageQuery = (limits: PageLimits) => ({
  limit: z.int().min(limits.min).max(limits.max).default(limits.default),
  after: z.string().optional().describe("The `id` of the last object of the page before."),
});
