/**
 * The routes for the finished lines of a batch, as JSON lines. The rows go from the journal to the connection without a
 * web stream between them, as downloads do.
 */
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { RESPONSE_ALREADY_SENT } from "@hono/node-server/utils/response";
import type { Results, ResultsQuery } from "../api/results.ts";
import { RESULT_LIMITS } from "../contract/results.ts";
import type { Log } from "../telemetry/log.ts";
import { abortedByClient, allowSilence } from "./connection.ts";
import { type AppContext, scopedIdOf } from "./context.ts";
import { assertKnownParams, boundedIntegerParam } from "./query.ts";
import type { Routes } from "./routes.ts";
import { trackingHeaders } from "./track.ts";

export interface ResultRoutesDeps {
  readonly results: Results;
  readonly log: Log;
}

export function mountResults(app: Routes, deps: ResultRoutesDeps): void {
  app.get("/v1/batches/:id/output", (c) => answerRows(c, "output", deps));
  app.get("/v1/batches/:id/errors", (c) => answerRows(c, "error", deps));
}

async function answerRows(
  c: AppContext,
  kind: ResultsQuery["kind"],
  { results, log }: ResultRoutesDeps,
): Promise<Response> {
  const query = { kind, ...rowsQuery(c) };
  const { incoming, outgoing } = c.env;
  allowSilence(incoming);
  await using reading = await results.open(scopedIdOf(c), query, abortedByClient(outgoing));
  const { batch, rows } = reading;
  const headers = { "content-type": "application/jsonl", "x-batch-status": batch.status };
  if (c.req.method === "HEAD") return c.body(null, 200, headers);
  outgoing.writeHead(200, { ...headers, ...trackingHeaders(c) });
  await pipeline(Readable.from(rows, { objectMode: false }), outgoing).catch((err: unknown) => {
    log.warn({ batch: batch.id, requestId: c.get("requestId"), err }, "download.broken");
  });
  return RESPONSE_ALREADY_SENT;
}

function rowsQuery(c: AppContext): Omit<ResultsQuery, "kind"> {
  assertKnownParams(c, ["after_line", "limit", "wait"]);
  const { afterLine, limit, waitSeconds } = RESULT_LIMITS;
  return {
    afterLine: boundedIntegerParam(c, "after_line", afterLine) ?? 0,
    limit: boundedIntegerParam(c, "limit", limit),
    waitMs: (boundedIntegerParam(c, "wait", waitSeconds) ?? 0) * 1000,
  };
}
