/** The routes for operators: health, readiness and metrics. */
import type { Hono } from "hono";
import type { Metrics, Now } from "../telemetry/metrics.ts";
import type { AppContext, AppEnv } from "./context.ts";
import { answerJson } from "./json.ts";

export interface OpsDeps {
  /** Rejects with the reason for which the server cannot take work. */
  readonly assertReady: () => Promise<void>;
  readonly metrics: Metrics;
  /** Takes the current values for the metrics. */
  readonly takeSnapshot: () => Promise<Now>;
}

/** Mounts the routes for supervisors, load balancers and Prometheus. They need no key. */
export function mountOps(app: Hono<AppEnv>, { assertReady, metrics, takeSnapshot }: OpsDeps): void {
  app.get("/health", (c) => answerJson(c, { status: "ok" }));

  // Each look writes to the storage.
  const ready = shared(assertReady);
  app.get("/ready", async (c) => {
    try {
      await ready();
      return answerJson(c, { status: "ready" });
    } catch (cause) {
      // The log gets it with the request. Anyone may ask here, so the answer must not have it.
      c.error = cause as Error;
      return answerJson(c, { status: "unavailable" }, 503);
    }
  });

  // A scrape may take a second where there are many projects.
  const scrape = shared(async () => metrics.scrape(await takeSnapshot()));
  app.get("/metrics", async (c) => {
    if (!isAsWritten(c)) return c.notFound();
    return c.body(await scrape(), 200, { "content-type": metrics.contentType });
  });
}

/** Anyone may ask, any number of times at once. Those who ask while there is a look under way get what it finds. */
function shared<Found>(look: () => Promise<Found>): () => Promise<Found> {
  let looking: Promise<Found> | null = null;
  return () => {
    looking ??= look().finally(() => {
      looking = null;
    });
    return looking;
  };
}

/**
 * Whether the client has written the path as the route has it. A proxy that keeps `/metrics` from clients compares it, and
 * must not be passed by with `/metrics/` or `/a/../metrics`.
 */
const isAsWritten = (c: AppContext): boolean =>
  /^(?:https?:\/\/[^/]*)?\/metrics(?:\?|$)/i.test(c.env.incoming.url ?? "");
