/** The route that shows the course of a batch. */
import type { BatchCourse, FindCourse } from "../api/batch-progress.ts";
import type { BatchProgressObject } from "../contract/progress.ts";
import { scopedIdOf } from "./context.ts";
import { answerJson } from "./json.ts";
import { assertKnownParams } from "./query.ts";
import type { Routes } from "./routes.ts";

export interface ProgressRoutesDeps {
  readonly findCourse: FindCourse;
}

export function mountProgress(app: Routes, { findCourse }: ProgressRoutesDeps): void {
  app.get("/v1/batches/:id/progress", async (c) => {
    assertKnownParams(c, []);
    return answerJson(c, presentCourse(await findCourse(scopedIdOf(c))));
  });
}

/** Three digits are enough for a chart. */
const rounded = (rate: number) => Math.round(rate * 1000) / 1000;

const presentCourse = ({ batchId, points, latency }: BatchCourse): BatchProgressObject => ({
  object: "batch.progress",
  batch_id: batchId,
  points: points.map((point) => ({
    at: point.atMs / 1000,
    completed: point.completed,
    failed: point.failed,
    input_tokens: point.inputTokens,
    output_tokens: point.outputTokens,
    lines_per_second: rounded(point.linesPerSecond),
    tokens_per_second: rounded(point.tokensPerSecond),
  })),
  latency: latency && {
    lines: latency.lines,
    p50_ms: latency.percentiles.p50,
    p90_ms: latency.percentiles.p90,
    p95_ms: latency.percentiles.p95,
    p99_ms: latency.percentiles.p99,
    buckets: latency.buckets.map(({ upToMs, lines }) => ({ up_to_ms: upToMs, lines })),
  },
});
