/** Every request gets an id, three headers and one line in the log. */

import type { MiddlewareHandler } from "hono";
import { randomHexId } from "../batch/random-id.ts";
import type { Log } from "../log.ts";
import type { AppContext, AppEnv } from "./context.ts";

const API_VERSION = "2020-10-01";

export const newRequestId = () => `req_${randomHexId()}`;

const elapsedMs = (c: AppContext) => Math.round(performance.now() - c.get("startedAtMs"));

/** The headers that every answer has. */
export const trackingHeaders = (c: AppContext): Record<string, string> => ({
  "x-request-id": c.get("requestId"),
  "openai-version": API_VERSION,
  "openai-processing-ms": String(elapsedMs(c)),
});

export const trackRequests =
  (log: Log): MiddlewareHandler<AppEnv> =>
  async (c, next) => {
    c.set("startedAtMs", performance.now());
    c.set("requestId", newRequestId());
    await next();
    const { outgoing } = c.env;
    // A download has written its own head by now.
    const status = outgoing.headersSent ? outgoing.statusCode : c.res.status;
    if (!outgoing.headersSent) {
      for (const [name, value] of Object.entries(trackingHeaders(c))) c.header(name, value);
    }
    const { method, path } = c.req;
    const entry = { method, path, status, ms: elapsedMs(c), requestId: c.get("requestId") };
    if (status >= 500) log.error({ ...entry, err: c.error }, "request.completed");
    else log.debug(entry, "request.completed");
  };
