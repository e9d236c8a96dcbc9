/**
 * Answers with pieces that are made while they are sent, so the answer has no length. They go to the connection without a web
 * stream between them, which would halve the speed. The middleware then finds the answer already sent.
 */
import { Readable } from "node:stream";
import { RESPONSE_ALREADY_SENT } from "@hono/node-server/utils/response";
import type { Log } from "../telemetry/log.ts";
import { type DownloadFields, isClientGone, logBroken, sendStream } from "./connection.ts";
import type { AppContext } from "./context.ts";
import { trackingHeaders } from "./track.ts";

interface StreamAnswer {
  readonly headers: Readonly<Record<string, string>>;
  readonly pieces: Iterable<Buffer> | AsyncIterable<Buffer>;
  /** The signal that ends the answer. */
  readonly signal?: AbortSignal;
  readonly log: Log;
  /** The fields that the log gets of an answer that breaks off. */
  readonly about: DownloadFields;
}

export async function answerStream(
  c: AppContext,
  { headers, pieces, signal, log, about }: StreamAnswer,
): Promise<Response> {
  if (c.req.method === "HEAD") return c.body(null, 200, headers);
  const { outgoing } = c.env;
  outgoing.writeHead(200, { ...headers, ...trackingHeaders(c) });
  const content = Readable.from(pieces, { objectMode: false });
  await sendStream(content, outgoing, signal).catch((err: unknown) => {
    // The signal may abort because the connection has closed, whatever has broken the answer.
    const reason: unknown = signal?.aborted === true && isClientGone(err) ? signal.reason : err;
    logBroken(log, { ...about, request_id: c.get("requestId") }, reason);
  });
  return RESPONSE_ALREADY_SENT;
}
