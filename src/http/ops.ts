import type { Hono } from "hono";
import type { Metrics, Now } from "../telemetry/metrics.ts";
import type { AppEnv } from "./context.ts";
import { answerJson } from "./json.ts";

export interface OpsDeps {
  readonly isReady: () => Promise<boolean>;
  readonly metrics: Metrics;
  /** What the metrics show of the moment. */
  readonly takeSnapshot: () => Promise<Now>;
}

/** For supervisors, load balancers and Prometheus: does it live, may it have traffic, how is it? No key is asked for. */
export function mountOps(
  app: Hono<AppEnv>,
  { isReady, metrics, takeSnapshot: lookAround }: OpsDeps,
): void {
  app.get("/health", (c) => answerJson(c, { status: "ok" }));

  app.get("/ready", async (c) =>
    (await isReady().catch(() => false))
      ? answerJson(c, { status: "ready" })
      : answerJson(c, { status: "unavailable" }, 503),
  );

  app.get("/metrics", async (c) =>
    c.body(await metrics.scrape(await lookAround()), 200, { "content-type": metrics.contentType }),
  );
}
