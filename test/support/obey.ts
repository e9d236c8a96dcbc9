/** Carries out the directives of a prompt: sends the answer that they ask for, or causes the fault. */
import type { ServerResponse } from "node:http";
import { setTimeout as delay } from "node:timers/promises";
import {
  answerOfSize,
  answerTo,
  errorEnvelope,
  fragileJson,
  type ModelRequest,
} from "./answers.ts";
import type { Directives } from "./directives.ts";

export async function obey(
  directives: Directives,
  request: ModelRequest,
  response: ServerResponse,
): Promise<void> {
  const socket = response.socket;
  // The client has disconnected during a `hold` or a `delay`.
  if (socket === null) return;
  const { type, body } = bodyOf(directives, request);
  const half = body.subarray(0, Math.ceil(body.length / 2));
  switch (directives.fault) {
    case "hang":
      return;
    case "reset":
      socket.resetAndDestroy();
      return;
    case "garbage":
      socket.end("220 mail.example.com ESMTP ready\r\n\r\n");
      return;
    case "reset-mid":
      response.writeHead(200, { "content-type": type, "content-length": body.length });
      response.write(half, () => setImmediate(() => socket.resetAndDestroy()));
      return;
    case "none":
      response.writeHead(directives.status, {
        "content-type": type,
        "content-length": body.length,
        "x-request-id": `req-${request.number}`,
        ...directives.headers,
      });
      await writePieces(response, body, directives.pieces);
  }
}

function bodyOf(d: Directives, request: ModelRequest): { type: string; body: Buffer } {
  const as = (type: string, text: string) => ({ type, body: Buffer.from(text) });
  const json = (value: unknown) => as("application/json", JSON.stringify(value));
  const answer = answerTo(request);
  switch (d.body) {
    case "html":
      return as("text/html", `<html>\n<body>status ${d.status}</body>\n</html>\n`);
    case "text":
      return as("text/plain", `plain words for status ${d.status}`);
    case "empty":
      return as("text/plain", "");
    case "sse":
      return as("text/event-stream", `data: ${JSON.stringify(answer)}\n\ndata: [DONE]\n\n`);
    case "bigint":
      return as("application/json", fragileJson(request.prompt));
    case "truncate": {
      const text = JSON.stringify(answer);
      return as("application/json", text.slice(0, text.length / 2));
    }
    case "json":
      if (d.bigBytes > 0) return as("application/json", answerOfSize(request, d.bigBytes));
      if (d.status !== 200) return json(errorEnvelope(d.status));
      if (answer !== null) return json(answer);
      d.status = 404;
      return json({ detail: "Not Found" });
  }
}

async function writePieces(
  response: ServerResponse,
  body: Buffer,
  { count, everyMs }: Directives["pieces"],
): Promise<void> {
  const pieceBytes = Math.max(1, Math.ceil(body.length / count));
  for (let at = pieceBytes; at < body.length; at += pieceBytes) {
    response.write(body.subarray(at - pieceBytes, at));
    await delay(everyMs);
  }
  response.end(body.subarray(Math.max(0, Math.ceil(body.length / pieceBytes) - 1) * pieceBytes));
}
