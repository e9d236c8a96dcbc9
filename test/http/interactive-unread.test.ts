/** Clients that do not read the answers to their interactive requests: they keep no slot of the model from others. */
import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { once } from "node:events";
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import { afterAll, beforeAll, expect, test } from "vitest";
import { answerChat } from "../support/given.ts";
import { CHAT, serviceFor, sse } from "../support/interactive.ts";
import { RawConnection } from "../support/raw-http.ts";
import type { TestService } from "../support/service.ts";
import { type Exchange, startUpstream, type TestUpstream } from "../support/upstream.ts";

const SILENCE_MS = 300_000;
/** Less than one reader leaves unread within the server, which then has the whole answer. */
const PIECE = Buffer.alloc(32 * 1024, "x");

let upstream: TestUpstream;
let service: TestService;
beforeAll(async () => {
  upstream = await startUpstream({ answers: "by_hand" });
  service = await serviceFor(upstream.url, { max_concurrency: 1, interactive_reserve: 0 });
});
afterAll(async () => {
  await service[Symbol.asyncDispose]();
  await upstream[Symbol.asyncDispose]();
});

/** A request whose client reads nothing, the server's side of it, and its arrival at the upstream. */
interface Unread {
  readonly client: RawConnection;
  readonly outgoing: ServerResponse;
  readonly socket: Socket;
  readonly exchange: Exchange;
}

async function askUnread(): Promise<Unread> {
  const started = Promise.withResolvers<ServerResponse>();
  const onRequest = (message: unknown) => {
    const { request, response } = message as { request: IncomingMessage; response: ServerResponse };
    if (request.headers["x-unread"] !== undefined) started.resolve(response);
  };
  subscribe("http.server.request.start", onRequest);
  const client = await RawConnection.open(service.url);
  client.socket.pause();
  const body = JSON.stringify(CHAT);
  client.send(
    `POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-Unread: 1\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
  );
  const outgoing = await started.promise;
  unsubscribe("http.server.request.start", onRequest);
  const exchange = await upstream.next();
  exchange.response.writeHead(200, { "content-type": "text/event-stream" }).flushHeaders();
  return { client, outgoing, socket: outgoing.socket as Socket, exchange };
}

/** Writes until the client's side takes nothing more. */
async function fill({ outgoing, exchange: { response } }: Unread): Promise<void> {
  const seen = () => outgoing.writableNeedDrain;
  while (!seen()) {
    response.write(PIECE);
    await (await fetch(`${service.url}/health`)).text();
  }
}

const ask = () =>
  fetch(`${service.url}/v1/chat/completions`, { method: "POST", body: JSON.stringify(CHAT) });

test("a client that stops reading keeps no slot once the model has answered", async () => {
  const unread = await askUnread();
  using _client = unread.client;
  const other = ask();
  await fill(unread);
  unread.exchange.response.end(PIECE);

  answerChat(await upstream.next());

  expect((await other).status).toBe(200);
  expect(unread.socket.destroyed).toBe(false);
});

test("a client that reads nothing of a longer answer loses it after a silence, and with it the slot", async () => {
  const unread = await askUnread();
  using _client = unread.client;
  const other = ask();
  await fill(unread);
  for (let i = 0; i < 8; i++) unread.exchange.response.write(PIECE);
  expect(unread.socket.timeout).toBe(SILENCE_MS);
  // The silence of this test is shorter.
  unread.socket.setTimeout(1);
  await unread.exchange.closed;

  answerChat(await upstream.next());

  expect((await other).status).toBe(200);
});

test("a model that is silent in the middle of its answer costs its client nothing", async () => {
  const unread = await askUnread();
  using client = unread.client;
  unread.exchange.response.write(sse("1"));
  client.socket.resume();
  await once(client.socket, "data");
  const silent = once(unread.socket, "timeout");
  unread.socket.setTimeout(1);
  await silent;

  unread.exchange.response.end(sse("2"));

  let text = "";
  while (!text.includes("0\r\n\r\n")) text += String((await once(client.socket, "data"))[0]);
  expect(text).toContain(sse("2"));
});
