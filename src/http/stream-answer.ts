/**
 * Answers with pieces that are made while they are sent, so the answer has no length. They go to the connection without a web
 * stream between them, which would halve the speed. The middleware then finds the answer already sent.
 */
import { Readable } from "node:stream";
import { RESPONSE_ALREADY_SENT } from "@hono/node-server/utils/response";
import { breakOf, sendStream } from "./connection.ts";
import type { AppContext } from "./context.ts";
import { trackingHeaders } from "./track.ts";

interface StreamAnswer {
  readonly headers: Readonly<Record<string, string>>;
  readonly pieces: Iterable<Buffer> | AsyncIterable<Buffer>;
  /** The signal that ends the answer. */
  readonly signal?: AbortSignal;
  /**
   * The callback for an answer that breaks off, with fields for the log. The client sees a broken connection, and is most often
   * the one that closed it.
   */
  readonly onBroken: (fields: { readonly request_id: string; readonly err?: unknown }) => void;
}

export async function answerStream(
  c: AppContext,
  { headers, pieces, signal, onBroken }: StreamAnswer,
): Promise<Response> {
  if (c.req.method === "HEAD") return c.body(null, 200, headers);
  const { outgoing } = c.env;
  outgoing.writeHead(200, { ...headers, ...trackingHeaders(c) });
  const content = Readable.from(pieces, { objectMode: false });
  await sendStream(content, outgoing, signal).catch((err: unknown) => {
    onBroken({ request_id: c.get("requestId"), ...breakOf(err) });
  });
  return RESPONSE_ALREADY_SENT;
}
