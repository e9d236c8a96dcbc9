/**
 * Passes interactive requests through to a model while the client waits. The answer flows from one connection to the
 * other, no faster than the client reads. The end of one side ends the other. A client that disconnects ends the
 * request upstream, and so does one that reads nothing for too long: it would keep a slot of the upstream. An answer that
 * breaks must break here too, so that it never looks complete.
 */
import type { ServerResponse } from "node:http";
import { RESPONSE_ALREADY_SENT } from "@hono/node-server/utils/response";
import type { ContentfulStatusCode } from "hono/utils/http-status";
import {
  INTERACTIVE_ENDPOINTS,
  type Interactive,
  type InteractiveEndpoint,
} from "../api/interactive.ts";
import type { Log } from "../telemetry/log.ts";
import type { Proxied } from "../upstream/request.ts";
import { abortedByClient, allowSilence, closeUnread, sendStream } from "./connection.ts";
import type { AppContext } from "./context.ts";
import { readBodyInto, roomFor } from "./json.ts";
import { deploymentIn } from "./path.ts";
import type { Routes } from "./routes.ts";
import { originOf, trackingHeaders } from "./track.ts";

/** The status in the log for a client that disconnected before its answer. No client ever receives it. */
const CLIENT_CLOSED_REQUEST = 499 as ContentfulStatusCode;

export interface InteractiveRoutesDeps {
  readonly interactive: Interactive;
  /** The longest body, in bytes. */
  readonly maxLineBytes: () => number;
  readonly log: Log;
}

export function mountInteractive(app: Routes, deps: InteractiveRoutesDeps): void {
  for (const endpoint of INTERACTIVE_ENDPOINTS) {
    app.post(endpoint, (c) => passThrough(c, endpoint, deps));
  }
}

async function passThrough(
  c: AppContext,
  endpoint: InteractiveEndpoint,
  { interactive, maxLineBytes, log }: InteractiveRoutesDeps,
): Promise<Response> {
  const { incoming, outgoing } = c.env;
  const disconnected = abortedByClient(outgoing);
  // The room lasts to the end of the answer, because the connection to the model holds the body until then.
  using room = roomFor(c);
  const body = await readBodyInto(room, c, maxLineBytes());
  allowSilence(incoming);
  const deployment = deploymentIn(c.req.url);
  const project = c.get("project");
  const request = { project, endpoint, body, deployment, origin: originOf(c) };
  const answer = await interactive.answer(request, disconnected);
  if (answer.kind === "disconnected") return c.body(null, CLIENT_CLOSED_REQUEST);
  c.set("upstreamRequestId", headerOf(answer, "x-request-id"));
  await sendOn(c, answer, { disconnected, log });
  return RESPONSE_ALREADY_SENT;
}

async function sendOn(
  c: AppContext,
  answer: Proxied,
  { disconnected, log }: { readonly disconnected: AbortSignal; readonly log: Log },
): Promise<void> {
  const { outgoing } = c.env;
  const { requestId: request_id, upstreamRequestId: upstream_request_id } = c.var;
  // The side that ends first ends the other one, so only this moment knows which one it was.
  let problem: string | null = null;
  const onBreak = ({ message }: Error) => {
    if (disconnected.aborted) return;
    problem = message;
  };
  if (answer.body.errored === null) answer.body.once("error", onBreak);
  else onBreak(answer.body.errored);
  outgoing.writeHead(answer.status, { ...passedOn(answer, outgoing), ...trackingHeaders(c) });
  outgoing.flushHeaders();
  closeUnread(outgoing);
  await sendStream(answer.body, outgoing).catch(() => {
    if (problem === null)
      log.debug({ request_id, upstream_request_id }, "proxy.client_disconnected");
    else log.warn({ request_id, upstream_request_id, problem }, "proxy.broken");
  });
}

/** The upstream's headers that matter to a client. All others concern only batchd and the upstream: no answer is compressed. */
const PASSED_ON =
  /^(?:content-type|content-length|cache-control|retry-after|retry-after-ms|x-should-retry|x-ratelimit-.+)$/;

/** A header that is set already says how many requests the project has left. The upstream speaks of those of all projects. */
function passedOn(
  { headers }: Proxied,
  outgoing: ServerResponse,
): Record<string, string | string[]> {
  const passed: Record<string, string | string[]> = {};
  for (const [name, value] of Object.entries(headers)) {
    const isPassed = PASSED_ON.test(name) && !outgoing.hasHeader(name);
    if (value !== undefined && isPassed) passed[name] = value;
    if (value !== undefined && name === "x-request-id") passed["x-upstream-request-id"] = value;
  }
  return passed;
}

function headerOf({ headers }: Proxied, name: string): string | undefined {
  const value = headers[name];
  return typeof value === "string" ? value : value?.[0];
}
