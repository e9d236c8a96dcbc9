/** Gives every request an id, four headers and a line in the log, and counts it. */

import type { MiddlewareHandler } from "hono";
import { matchedRoutes } from "hono/route";
import { randomHexId } from "../batch/random-id.ts";
import type { Clock } from "../clock.ts";
import { PublicError } from "../errors.ts";
import type { Log } from "../telemetry/log.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import { type Origin, traceparentFrom } from "../telemetry/tracing.ts";
import type { AppContext, AppEnv } from "./context.ts";

const API_VERSION = "2020-10-01";

export const newRequestId = () => `req_${randomHexId()}`;

const tookMs = (c: AppContext) => c.get("clock").elapsedMs() - c.get("startedAtMs");

/** Returns the headers that every answer has. */
export const trackingHeaders = (c: AppContext): Record<string, string> => ({
  "x-request-id": c.get("requestId"),
  "openai-version": API_VERSION,
  "openai-processing-ms": String(Math.round(tookMs(c))),
  "x-content-type-options": "nosniff",
});

/** Returns the origin of a request, for logs and traces. */
export const originOf = (c: AppContext): Origin => ({
  requestId: c.get("requestId"),
  traceparent: traceparentFrom(c.req.header("traceparent")),
});

/** Returns the pattern of the route that took the request. The patterns of middleware end in a star. */
export const routeOf = (c: AppContext): string =>
  matchedRoutes(c).findLast(({ path }) => !path.endsWith("*"))?.path ?? "other";

/** Returns the status of the answer. A download has already written its own headers. */
export const statusOf = (c: AppContext): number =>
  c.env.outgoing.headersSent ? c.env.outgoing.statusCode : c.res.status;

/** Returns the fields that the log gets of an error. A foreseen one needs only its message, any other its stack. */
const reasonOf = (error: Error | undefined) =>
  error instanceof PublicError ? { problem: error.message, err: error.cause } : { err: error };

interface TrackDeps {
  readonly clock: Clock;
  readonly log: Log;
  readonly metrics: Metrics;
}

export const trackRequests =
  ({ clock, log, metrics }: TrackDeps): MiddlewareHandler<AppEnv> =>
  async (c, next) => {
    c.set("clock", clock);
    c.set("startedAtMs", clock.elapsedMs());
    c.set("requestId", c.env.requestId ?? newRequestId());
    await next();
    const { outgoing } = c.env;
    const status = statusOf(c);
    if (!outgoing.headersSent) {
      // The headers go straight to the socket. Hono's answer would get a web stream as its body, which takes longer
      // than the rest of the request.
      for (const [name, value] of Object.entries(trackingHeaders(c)))
        outgoing.setHeader(name, value);
    }
    const { method, path } = c.req;
    const { requestId: request_id, upstreamRequestId: upstream_request_id } = c.var;
    const ms = tookMs(c);
    metrics.answered({ method, route: routeOf(c), status, ms });
    const entry = { method, path, status, ms: Math.round(ms), request_id, upstream_request_id };
    if (status >= 500) log.error({ ...entry, ...reasonOf(c.error) }, "request.completed");
    else log.debug(entry, "request.completed");
  };
