/**
 * The model server of the throughput figures, in a process of its own. Every chat completion gets the same answer, at
 * once or after a delay. The servers in `test/support/` read and remember each request, and on two cores that work
 * would be part of every figure. So this server must never parse a request; it keeps four numbers.
 *
 * `GET /stats` returns them, and `DELETE /stats` resets them.
 */
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { parseArgs } from "node:util";
import { fillerText } from "./inputs.ts";

/** The connections that may wait, for 5,000 callers that connect in the same moment. */
const BACKLOG = 4_096;

export interface UpstreamStats {
  received: number;
  inFlight: number;
  maxInFlight: number;
  /** The time on the monotonic clock that all processes of a machine share; null before the first request. */
  firstRequestAtMs: number | null;
}

const noStats = (): UpstreamStats => ({
  received: 0,
  inFlight: 0,
  maxInFlight: 0,
  firstRequestAtMs: null,
});

/** Returns a chat completion whose content has about `contentBytes`. */
const answerOf = (contentBytes: number): Buffer =>
  Buffer.from(
    JSON.stringify({
      id: "chatcmpl-bench",
      object: "chat.completion",
      created: 1_700_000_000,
      model: "bench-model",
      choices: [
        {
          index: 0,
          message: { role: "assistant", content: fillerText(contentBytes) },
          logprobs: null,
          finish_reason: "stop",
        },
      ],
      usage: { prompt_tokens: 32, completion_tokens: 16, total_tokens: 48 },
    }),
  );

function serve(delayMs: number, answer: Buffer): void {
  let stats = noStats();
  const head = ["content-type", "application/json", "content-length", String(answer.length)];
  const reply = (response: ServerResponse) => {
    stats.inFlight--;
    response.writeHead(200, head).end(answer);
  };
  const server = createServer({ keepAliveTimeout: 120_000 }, (request, response) => {
    response.sendDate = false;
    if (request.method !== "POST") {
      response.writeHead(200, head.slice(0, 2)).end(JSON.stringify(stats));
      if (request.method === "DELETE") stats = noStats();
      return;
    }
    stats.received++;
    stats.inFlight++;
    if (stats.inFlight > stats.maxInFlight) stats.maxInFlight = stats.inFlight;
    stats.firstRequestAtMs ??= Number(process.hrtime.bigint()) / 1e6;
    request.resume().once("end", () => {
      if (delayMs > 0) setTimeout(reply, delayMs, response);
      else reply(response);
    });
  });
  server.listen({ port: 0, host: "127.0.0.1", backlog: BACKLOG }, () => {
    const { port } = server.address() as AddressInfo;
    process.stdout.write(`listening on http://127.0.0.1:${port}\n`);
  });
}

if (import.meta.main) {
  const { values } = parseArgs({
    options: {
      "delay-ms": { type: "string", default: "0" },
      "answer-bytes": { type: "string", default: "100" },
    },
  });
  serve(Number(values["delay-ms"]), answerOf(Number(values["answer-bytes"])));
}
