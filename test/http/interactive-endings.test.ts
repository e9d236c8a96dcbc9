import { once } from "node:events";
import { Agent, request as httpRequest, type IncomingMessage } from "node:http";
import { describe, expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { answerChat } from "../support/given.ts";
import { CHAT, Interactive, serviceFor, sse } from "../support/interactive.ts";
import { waitingCount } from "../support/prometheus.ts";
import { RawConnection } from "../support/raw-http.ts";
import type { TestService } from "../support/service.ts";
import { wireOf } from "../support/test-http.ts";
import type { TestUpstream } from "../support/upstream.ts";

let upstream: TestUpstream;
let service: TestService;
const client = forAllTests(await Interactive.start());
({ upstream, service } = client);

describe("an upstream that gives no answer", () => {
  test("is a 502 when it cannot be reached", async () => {
    await using own = await serviceFor("http://127.0.0.1:9/v1");
    const answer = await client.ask(CHAT, own);
    expect(answer.status).toBe(502);
    expect((await wireOf(answer)).error).toMatchObject({
      type: "server_error",
      code: "upstream_unreachable",
    });
  });

  test("is a 502 when it breaks off before the answer begins", async () => {
    const [answer, { response }] = await client.asked();
    response.destroy();
    expect((await answer).status).toBe(502);
    expect((await wireOf(await answer)).error.code).toBe("upstream_error");
  });

  test("is a 504 when it takes too long to begin", async () => {
    await using own = await serviceFor(upstream.url, { first_byte_timeout_seconds: 0.2 });
    const answer = client.ask(CHAT, own);
    const exchange = await upstream.next();
    expect((await answer).status).toBe(504);
    const { error } = await wireOf(await answer);
    expect(error.code).toBe("upstream_timeout");
    await exchange.closed;
    await own.events.reached("request.completed", { status: 504, problem: error.message });
    expect(JSON.stringify(own.events.all), "the trace of a stack").not.toContain(".ts:");
  });

  test("is a 503 with the time to wait while it has asked to be left alone", async () => {
    await using own = await serviceFor(upstream.url);
    const refused = client.ask(CHAT, own);
    const { response } = await upstream.next();
    response.writeHead(429, { "retry-after": "3600" }).end("{}");
    expect((await refused).status).toBe(429);
    const before = upstream.total;
    const answer = await client.ask(CHAT, own);
    expect(answer.status).toBe(503);
    const { headers } = answer;
    expect(Number(headers.get("retry-after"))).toBeGreaterThan(3_500);
    expect(Number(headers.get("retry-after-ms"))).toBeGreaterThan(3_500_000);
    expect((await wireOf(answer)).error.code).toBe("model_unavailable");
    expect(upstream.total).toBe(before);
  });
});

describe("an answer that breaks off", () => {
  test("never looks complete", async () => {
    const [answer, { response }] = await client.asked();
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(sse("{}"));
    const reader = (await answer).body?.getReader();
    expect(Buffer.from((await reader?.read())?.value ?? "").toString()).toBe(sse("{}"));
    response.destroy();
    await expect(reader?.read()).rejects.toThrow();
    await service.events.reached("proxy.broken");
  });

  test("not even when only the end of its connection would end it", async () => {
    const [answer, { response }] = await client.asked();
    const head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\r\n";
    response.socket?.write(head + sse("{}"));
    const reader = (await answer).body?.getReader();
    await reader?.read();
    response.socket?.resetAndDestroy();
    await expect(reader?.read()).rejects.toThrow();
  });

  test("not even to a client of HTTP/1.0, for which the end of the connection is the end", async () => {
    using connection = await RawConnection.open(service.url);
    const body = JSON.stringify(CHAT);
    const failed = once(connection.socket, "error");
    connection.send(
      `POST /v1/chat/completions HTTP/1.0\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
    );
    const { response } = await upstream.next();
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(sse("{}"));
    await once(connection.socket, "data");
    response.destroy();
    expect(await failed).toMatchObject([{ code: "ECONNRESET" }]);
  });
});

describe("a client that leaves takes its request along", () => {
  const leaving = () => {
    const controller = new AbortController();
    const init = { signal: controller.signal };
    const answer = client.post("/v1/chat/completions", JSON.stringify(CHAT), init);
    return { answer, leave: () => controller.abort() };
  };

  test("before the first byte", async () => {
    const { answer, leave } = leaving();
    const { closed } = await upstream.next();
    leave();
    await expect(answer).rejects.toThrow();
    await closed;
    await service.events.reached("request.completed", { status: 499 });
  });

  test("in the middle of a stream", async () => {
    const { answer, leave } = leaving();
    const { response, closed } = await upstream.next();
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(sse("{}"));
    await answer;
    leave();
    await closed;
    await service.events.reached("proxy.client_disconnected");
  });

  test("while it waits for a slot: it never goes out", async () => {
    await using own = await serviceFor(upstream.url, { max_concurrency: 1 });
    const first = client.ask(CHAT, own);
    const exchange = await upstream.next();
    const before = own.events.count("request.completed", { status: 499 });
    const controller = new AbortController();
    const waiting = client.post(
      "/v1/chat/completions",
      JSON.stringify({ ...CHAT, user: "leaves" }),
      { signal: controller.signal },
      own,
    );
    const third = client.ask({ ...CHAT, user: "stays" }, own);
    await waitingCount(own.url, 2);
    controller.abort();
    await expect(waiting).rejects.toThrow();
    await own.events.reached("request.completed", { status: 499, count: before + 1 });
    answerChat(exchange);
    await first;
    const next = await upstream.next();
    expect(JSON.parse(next.body)).toMatchObject({ user: "stays" });
    answerChat(next);
    expect((await third).status).toBe(200);
  });
});

test("a client that reads nothing stops the upstream, and nothing gathers in between", async () => {
  const piece = Buffer.alloc(1024 * 1024, 120);
  const total = 160;
  const agent = new Agent();
  const sent = httpRequest(`${service.url}/v1/chat/completions`, { method: "POST", agent });
  sent.end(JSON.stringify(CHAT));
  const { response } = await upstream.next();
  let written = 0;
  const writing = (async () => {
    for (; written < total; written++) {
      if (!response.write(piece)) await once(response, "drain");
    }
    response.end();
  })();
  const [incoming] = (await once(sent, "response")) as [IncomingMessage];
  let before = -1;
  // Stalled: nothing moved while the server answered others.
  while (written !== before) {
    before = written;
    for (let i = 0; i < 25; i++) await (await fetch(`${service.url}/health`)).text();
  }
  expect(written).toBeLessThan(total / 3);
  let bytes = 0;
  for await (const chunk of incoming) bytes += (chunk as Buffer).length;
  await writing;
  expect(bytes).toBe(total * piece.length);
  agent.destroy();
});
