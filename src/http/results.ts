/**
 * The routes for the finished lines of a batch, as JSON lines.
 *
 * An answer ends when the key of its client is no longer good. The limit on silence stays in force: a wait is shorter, and a
 * follower hears something every fifteen seconds. So a client that reads nothing keeps its place for some minutes only.
 */
import { RESPONSE_ALREADY_SENT } from "@hono/node-server/utils/response";
import type { Results, ResultsEvent, ResultsQuery } from "../api/results.ts";
import { RESULT_LIMITS } from "../contract/results.ts";
import { integerTooLarge } from "../errors.ts";
import type { Log } from "../telemetry/log.ts";
import { assertStillGood, readerOf } from "./auth.ts";
import { wrongType } from "./body.ts";
import { type AppContext, scopedIdOf } from "./context.ts";
import { assertKnownParams, boundedIntegerParam } from "./query.ts";
import type { Routes } from "./routes.ts";
import { answerStream } from "./stream-answer.ts";

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
  deps: ResultRoutesDeps,
): Promise<Response> {
  const query = { kind, ...rowsQuery(c) };
  if (c.req.header("accept")?.includes("text/event-stream")) {
    return answerEvents(c, query, deps);
  }
  const { results, log } = deps;
  const signal = readerOf(c);
  await using reading = await results.open(scopedIdOf(c), query, signal);
  assertStillGood(c);
  // A client that went while it waited was sent nothing, so nothing has broken.
  if (c.env.outgoing.closed) return RESPONSE_ALREADY_SENT;
  const { batch, rows } = reading;
  return await answerStream(c, {
    headers: { "content-type": "application/jsonl", "x-batch-status": batch.status },
    pieces: rows,
    signal,
    log,
    about: { batch: batch.id },
  });
}

/** Follows the batch as server-sent events. The id of an event is the number of its line, so a client can go on behind it. */
async function answerEvents(
  c: AppContext,
  query: ResultsQuery,
  { results, log }: ResultRoutesDeps,
): Promise<Response> {
  const afterLine = lastEventId(c) ?? query.afterLine;
  const signal = readerOf(c);
  using following = await results.follow(scopedIdOf(c), { ...query, afterLine }, signal);
  const { batch, events } = following;
  const headers = {
    "content-type": "text/event-stream",
    "cache-control": "no-store",
    // Without it nginx gathers events before it passes them on.
    "x-accel-buffering": "no",
    "x-batch-status": batch.status,
  };
  return await answerStream(c, {
    headers,
    pieces: eventTexts(events, { id: batch.id, limit: query.limit }),
    signal,
    log,
    about: { batch: batch.id },
  });
}

async function* eventTexts(
  events: AsyncGenerator<ResultsEvent>,
  { id, limit }: { readonly id: string; readonly limit: number | null },
): AsyncGenerator<Buffer> {
  yield Buffer.from("retry: 1000\n\n");
  let count = 0;
  for await (const event of events) {
    yield* eventText(event, id);
    if (event.kind === "line" && ++count === limit) return;
  }
}

async function* eventText(event: ResultsEvent, id: string): AsyncGenerator<Buffer> {
  switch (event.kind) {
    case "line":
      yield Buffer.from(`id: ${event.number}\ndata: `);
      yield* event.row;
      yield NEWLINE;
      return;
    case "silence":
      yield Buffer.from(": still here\n\n");
      return;
    case "end":
      yield Buffer.from(
        `event: end\ndata: ${JSON.stringify({ id, status: event.status ?? "deleted" })}\n\n`,
      );
  }
}

const NEWLINE = Buffer.from("\n");
const LAST_EVENT_ID = "Last-Event-ID";

/** Returns null without the header, with which a browser goes on after a broken connection. */
function lastEventId(c: AppContext): number | null {
  const text = c.req.header(LAST_EVENT_ID) ?? "";
  if (text === "") return null;
  if (!/^\d{1,10}$/.test(text)) throw wrongType(LAST_EVENT_ID, "an integer", "a string");
  const { max } = RESULT_LIMITS.afterLine;
  if (Number(text) > max) throw integerTooLarge(LAST_EVENT_ID, Number(text), max);
  return Number(text);
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
