/** The routes for operators: health, readiness and metrics. */
import type { Hono } from "hono";
import type { Metrics, Now } from "../telemetry/metrics.ts";
import type { AppContext, AppEnv } from "./context.ts";
import { answerJson } from "./json.ts";

export interface OpsDeps {
  readonly isReady: () => Promise<boolean>;
  readonly metrics: Metrics;
  /** Takes the current values for the metrics. */
  readonly takeSnapshot: () => Promise<Now>;
}

/** Mounts the routes for supervisors, load balancers and Prometheus. They need no key. */
export function mountOps(app: Hono<AppEnv>, { isReady, metrics, takeSnapshot }: OpsDeps): void {
  app.get("/health", (c) => answerJson(c, { status: "ok" }));

  app.get("/ready", async (c) =>
    (await isReady().catch(() => false))
      ? answerJson(c, { status: "ready" })
      : answerJson(c, { status: "unavailable" }, 503),
  );

  // A scrape may take a second where there are many projects, so requests that come meanwhile get the same text.
  let scraping: Promise<string> | null = null;
  const scrape = async () => metrics.scrape(await takeSnapshot());
  app.get("/metrics", async (c) => {
    if (!isAsWritten(c)) return c.notFound();
    scraping ??= scrape().finally(() => {
      scraping = null;
    });
    return c.body(await scraping, 200, { "content-type": metrics.contentType });
  });
}

/**
 * Whether the client has written the path as the route has it. A proxy that keeps `/metrics` from clients compares it, and
 * must not be passed by with `/metrics/` or `/a/../metrics`.
 */
const isAsWritten = (c: AppContext): boolean =>
  /^(?:https?:\/\/[^/]*)?\/metrics(?:\?|$)/i.test(c.env.incoming.url ?? "");
