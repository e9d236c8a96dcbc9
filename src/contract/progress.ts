/** The schema of the route that shows the course of a batch. */
import { z } from "zod";

const count = z.int().min(0);
const rate = z.number().min(0);

const Point = z.strictObject({
  at: z.number().describe("Unix seconds, with a fraction."),
  completed: count,
  failed: count,
  input_tokens: count,
  output_tokens: count,
  lines_per_second: rate.describe("The lines that ended since the point before, by second."),
  tokens_per_second: rate.describe("The tokens, of input and output, since the point before."),
});

const Latency = z.strictObject({
  lines: count.describe("The lines that were sent and have ended."),
  p50_ms: count.describe("Half of the lines took at most this long."),
  p90_ms: count,
  p95_ms: count,
  p99_ms: count,
  buckets: z
    .array(
      z.strictObject({
        up_to_ms: count
          .nullable()
          .describe("The longest time of the bucket; null for the last one, which has no bound."),
        lines: count,
      }),
    )
    .describe("The lines by the time that they took, the same buckets for every batch."),
});

export const BatchProgress = z
  .strictObject({
    object: z.literal("batch.progress"),
    batch_id: z.string(),
    points: z
      .array(Point)
      .describe(
        "The counters at moments between the first line and now, or the end: at most 123, however long the batch runs. Empty before the first line.",
      ),
    latency: Latency.nullable().describe(
      "How long lines took from their first attempt to their answer, with all attempts between. Percentiles are estimates within their bucket. Null while no line has ended.",
    ),
  })
  .meta({ id: "BatchProgress" });

export type BatchProgressObject = z.infer<typeof BatchProgress>;
