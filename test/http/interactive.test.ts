import { once } from "node:events";
import { Agent, request as httpRequest, type IncomingMessage } from "node:http";
import OpenAI from "openai";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { answerChat, answerWith } from "../support/given.ts";
import { waitingCount } from "../support/prometheus.ts";
import { RawConnection } from "../support/raw-http.ts";
import { chatLines, startTestService, type TestService } from "../support/service.ts";
import { wireOf } from "../support/test-http.ts";
import { type Exchange, startUpstream, type TestUpstream } from "../support/upstream.ts";

let upstream: TestUpstream;
let service: TestService;
beforeAll(async () => {
  upstream = await startUpstream({ answers: "by_hand" });
  service = await serviceFor(upstream.url);
});
afterAll(async () => {
  await service[Symbol.asyncDispose]();
  await upstream[Symbol.asyncDispose]();
});

const serviceFor = (url: string, more: object = {}, config: object = {}) =>
  startTestService({
    config: { upstreams: [{ name: "test", base_url: url, models: ["*"], ...more }], ...config },
  });

const CHAT = { model: "m", messages: [{ role: "user" as const, content: "Hello" }] };

const post = (path: string, body: string, init: RequestInit = {}, to = service) =>
  fetch(to.url + path, { method: "POST", body, ...init });

const ask = (body: object = CHAT, to = service) =>
  post("/v1/chat/completions", JSON.stringify(body), {}, to);

/** A request that somebody waits for, and its arrival at the upstream. */
async function asked(body: object = CHAT): Promise<[Promise<Response>, Exchange]> {
  return [ask(body), await upstream.next()];
}

const sse = (text: string) => `data: ${text}\n\n`;

describe("the official client", () => {
  test("gets every kind of answer", async () => {
    await using models = await startUpstream();
    await using own = await startTestService({ upstreamUrl: models.url });
    const { openai } = own;
    const chat = await openai.chat.completions.create(CHAT);
    expect(chat.choices[0]?.message.content).toEqual(expect.any(String));
    const completion = await openai.completions.create({ model: "m", prompt: "Hello" });
    expect(completion.choices).toHaveLength(1);
    const embeddings = await openai.embeddings.create({
      model: "m",
      input: ["a", "b"],
      encoding_format: "float",
    });
    expect(embeddings.data[0]?.embedding).toEqual(expect.any(Array));
    const response = await openai.responses.create({ model: "m", input: "Hello" });
    expect(response.object).toBe("response");
    const moderation = await openai.moderations.create({ model: "m", input: "Hello" });
    expect(moderation.results).toHaveLength(1);
    expect(models.seen.map(({ path }) => path)).toEqual([
      "/v1/chat/completions",
      "/v1/completions",
      "/v1/embeddings",
      "/v1/responses",
      "/v1/moderations",
    ]);
  });

  test("gets each piece of a stream while the model is still at the next", async () => {
    const streaming = service.openai.chat.completions.create({ ...CHAT, stream: true });
    const { response } = await upstream.next();
    response.writeHead(200, { "content-type": "text/event-stream" }).flushHeaders();
    const chunks = (await streaming)[Symbol.asyncIterator]();
    for (const content of ["Because", " air", " scatters"]) {
      response.write(sse(JSON.stringify({ choices: [{ index: 0, delta: { content } }] })));
      const { value } = (await chunks.next()) as IteratorYieldResult<OpenAI.ChatCompletionChunk>;
      expect(value.choices[0]?.delta.content).toBe(content);
    }
    response.end(sse("[DONE]"));
    expect(await chunks.next()).toMatchObject({ done: true });
  });

  test("may be Azure's, whose deployment is the model that the body leaves out", async () => {
    for (const [path, body, model] of [
      ["/openai/deployments/gpt%204o/chat/completions?api-version=1", {}, "gpt 4o"],
      ["/openai/deployments/gpt-4o/chat/completions/", { model: null }, "gpt-4o"],
      ["/openai/deployments/gpt-4o/chat/completions", { model: "other" }, "other"],
      ["/openai/v1/chat/completions", { model: "m" }, "m"],
    ] as const) {
      const answer = post(path, JSON.stringify(body));
      const exchange = await upstream.next();
      expect(exchange.path).toBe("/v1/chat/completions");
      expect(JSON.parse(exchange.body)).toEqual({ model });
      answerChat(exchange);
      expect((await answer).status).toBe(200);
    }
  });
});

describe("bytes stay what they are", () => {
  test("of requests", async () => {
    const body =
      '\r\n{ "seed" : 12345678901234567890.10,\n\t"model":"m","text":"\\u00e9é😀\\/" }\n';
    const answer = post("/v1/chat/completions", body);
    const exchange = await upstream.next();
    expect(exchange.body).toBe(body);
    answerChat(exchange);
    await answer;
  });

  test.each([200, 201, 400, 409, 418, 422, 500])("of answers with status %i", async (status) => {
    const body = Buffer.from([0x7b, 0x0a, 0xff, 0x00, 0x0d, 0x0a, 0xf0, 0x9f]);
    const [answer, { response }] = await asked();
    response.writeHead(status, { "content-type": "text/x-odd", "content-length": body.length });
    response.end(body);
    const { status: seen, headers } = await answer;
    expect(seen).toBe(status);
    expect(headers.get("content-type")).toBe("text/x-odd");
    expect(headers.get("content-length")).toBe(String(body.length));
    expect(Buffer.from(await (await answer).arrayBuffer())).toEqual(body);
  });

  test("of a stream without a length", async () => {
    const text = `: comment\r\n\r\n${sse("{}")}event: x\ndata: é\n\n${sse("[DONE]")}`;
    const [answer, { response }] = await asked({ ...CHAT, stream: true });
    response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-cache" });
    response.end(text);
    const seen = await answer;
    expect(seen.headers.get("content-length")).toBeNull();
    expect(seen.headers.get("cache-control")).toBe("no-cache");
    expect(await seen.text()).toBe(text);
  });
});

test("headers that concern the client pass, all others stay between the two servers", async () => {
  const [answer, { headers, response }] = await asked();
  expect(headers["authorization"]).toBeUndefined();
  response.writeHead(429, {
    "content-type": "application/json",
    "retry-after": "0",
    "retry-after-ms": "1",
    "x-ratelimit-remaining-requests": "17",
    "x-request-id": "req-of-upstream",
    "set-cookie": "a=b",
    server: "nginx",
    "keep-alive": "timeout=1",
  });
  response.end("{}");
  const seen = Object.fromEntries((await answer).headers);
  expect(seen).toMatchObject({
    "retry-after": "0",
    "retry-after-ms": "1",
    "x-ratelimit-remaining-requests": "17",
    "x-upstream-request-id": "req-of-upstream",
    "x-request-id": expect.stringMatching(/^req_[0-9a-f]{32}$/),
    "openai-version": "2020-10-01",
    "openai-processing-ms": expect.stringMatching(/^\d+$/),
  });
  for (const name of ["set-cookie", "server"]) expect(seen).not.toHaveProperty(name);
  expect(seen["keep-alive"]).not.toBe("timeout=1");
  await (await answer).text();
  await service.events.reached("request.completed", {
    requestId: seen["x-request-id"],
    upstreamRequestId: "req-of-upstream",
  });
});

test("the trace of a client goes on upstream, and what is none does not", async () => {
  const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  const traceOf = async (traceparent: string) => {
    const init = { headers: { traceparent } };
    const answer = post("/v1/chat/completions", JSON.stringify(CHAT), init);
    const exchange = await upstream.next();
    answerChat(exchange);
    await answer;
    return exchange.headers["traceparent"];
  };
  expect(await traceOf(trace)).toContain("4bf92f3577b34da6a3ce929d0e0e4736");
  for (const broken of ["nonsense", `${trace}0`, trace.replace("4bf", "xyz")]) {
    expect((await traceOf(broken)) ?? "").not.toContain("92f3577b34da6a3ce929d0e0e4736");
  }
});

describe("the model", () => {
  test("is the configured one where a request names none", async () => {
    await using own = await serviceFor(upstream.url, {}, { default_model: "usual" });
    for (const model of [undefined, null, ""]) {
      const answer = ask({ ...CHAT, model }, own);
      const exchange = await upstream.next();
      expect(JSON.parse(exchange.body)).toEqual({ ...CHAT, model: "usual" });
      answerChat(exchange);
      expect((await answer).status).toBe(200);
    }
  });

  test("goes out under the name that the upstream has for it", async () => {
    const models = [{ name: "ours", upstream_model: "theirs" }];
    await using own = await serviceFor(upstream.url, { models });
    const answer = ask({ model: "ours", x: 1 }, own);
    const exchange = await upstream.next();
    expect(exchange.body).toBe('{"model":"theirs","x":1}');
    answerChat(exchange);
    await answer;
  });

  test("must be named, and known", async () => {
    await using own = await serviceFor(upstream.url, { models: ["m"] });
    const none = await ask({ messages: [] }, own);
    expect(none.status).toBe(400);
    expect((await wireOf(none)).error).toEqual({
      message: "you must provide a model parameter",
      type: "invalid_request_error",
      param: null,
      code: null,
    });
    const unknown = await ask({ model: "x" }, own);
    expect(unknown.status).toBe(404);
    expect((await wireOf(unknown)).error).toEqual({
      message: "The model `x` does not exist or you do not have access to it.",
      type: "invalid_request_error",
      param: null,
      code: "model_not_found",
    });
    const number = await ask({ model: 5 }, own);
    expect(number.status).toBe(400);
    expect((await wireOf(number)).error).toMatchObject({ param: "model", code: "invalid_type" });
    expect(
      (await wireOf(await ask({ model: "x".repeat(100_000) }, own))).error.message,
    ).toHaveLength(261);
  });
});

describe("a request is refused before it goes out", () => {
  test.each(["", "{", "[]", '"text"', '{"model":"m"} x', '{"model":"\xff"}'])(
    "when its body is %j",
    async (text) => {
      const before = upstream.total;
      const init = { method: "POST", body: Buffer.from(text, "latin1") };
      const answer = await fetch(`${service.url}/v1/chat/completions`, init);
      expect(answer.status).toBe(400);
      const { error } = await wireOf(answer);
      expect(error.message).toMatch(/^We could not parse the JSON body of your request/);
      expect(upstream.total).toBe(before);
    },
  );

  test("when it is longer than a line may be", async () => {
    await using own = await serviceFor(upstream.url, {}, { limits: { max_line_bytes: 2_048 } });
    const answer = await ask({ ...CHAT, padding: "x".repeat(2_048) }, own);
    expect(answer.status).toBe(413);
    expect((await wireOf(answer)).error.message).toContain("2048 bytes");
  });

  test("without a key where one is asked for, and by another method than POST", async () => {
    const auth = { keys: [{ name: "ci", key: "sk-right" }] };
    await using own = await serviceFor(upstream.url, {}, { auth });
    expect((await ask(CHAT, own)).status).toBe(401);
    const wrong = new OpenAI({ baseURL: `${own.url}/v1`, apiKey: "sk-wrong", maxRetries: 0 });
    await expect(wrong.chat.completions.create(CHAT)).rejects.toMatchObject({ status: 401 });
    const answer = await fetch(`${service.url}/v1/chat/completions`);
    expect([answer.status, answer.headers.get("allow")]).toEqual([405, "POST"]);
  });
});

describe("an upstream that gives no answer", () => {
  test("is a 502 when it cannot be reached", async () => {
    await using own = await serviceFor("http://127.0.0.1:9/v1");
    const answer = await ask(CHAT, own);
    expect(answer.status).toBe(502);
    expect((await wireOf(answer)).error).toMatchObject({
      type: "server_error",
      code: "upstream_unreachable",
    });
  });

  test("is a 502 when it breaks off before the answer begins", async () => {
    const [answer, { response }] = await asked();
    response.destroy();
    expect((await answer).status).toBe(502);
    expect((await wireOf(await answer)).error.code).toBe("upstream_error");
  });

  test("is a 504 when it takes too long to begin", async () => {
    await using own = await serviceFor(upstream.url, { first_byte_timeout_seconds: 0.2 });
    const answer = ask(CHAT, own);
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
    const refused = ask(CHAT, own);
    const { response } = await upstream.next();
    response.writeHead(429, { "retry-after": "3600" }).end("{}");
    expect((await refused).status).toBe(429);
    const before = upstream.total;
    const answer = await ask(CHAT, own);
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
    const [answer, { response }] = await asked();
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(sse("{}"));
    const reader = (await answer).body?.getReader();
    expect(Buffer.from((await reader?.read())?.value ?? "").toString()).toBe(sse("{}"));
    response.destroy();
    await expect(reader?.read()).rejects.toThrow();
    await service.events.reached("proxy.broken");
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
    const answer = post("/v1/chat/completions", JSON.stringify(CHAT), init);
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
    const first = ask(CHAT, own);
    const exchange = await upstream.next();
    const before = own.events.count("request.completed", { status: 499 });
    const controller = new AbortController();
    const waiting = post(
      "/v1/chat/completions",
      JSON.stringify({ ...CHAT, user: "leaves" }),
      { signal: controller.signal },
      own,
    );
    const third = ask({ ...CHAT, user: "stays" }, own);
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

const INTERACTIVE = { ...CHAT, user: "interactive" };
const userOf = ({ body }: Exchange) => (JSON.parse(body.toString()) as { user?: string }).user;

/** A batch that has all the slots it may have, and the lines that hold them. */
async function busyBatch(own: TestService, slots: number, lineCount: number) {
  const batch = await own.submit(chatLines(lineCount));
  const held: Exchange[] = [];
  for (let i = 0; i < slots; i++) held.push(await upstream.next());
  return { batch, held };
}

async function answerRest(held: readonly Exchange[], lineCount: number): Promise<void> {
  for (const exchange of held) answerChat(exchange);
  for (let i = held.length; i < lineCount; i++) answerChat(await upstream.next());
}

describe("while a batch fills every slot", () => {
  test("a single request takes the first one that is free, ahead of all lines", async () => {
    const slots = { min_concurrency: 4, max_concurrency: 4, interactive_reserve: 0 };
    await using own = await serviceFor(upstream.url, slots);
    const { batch, held } = await busyBatch(own, 4, 24);
    const count = upstream.total;
    const answer = ask(INTERACTIVE, own);
    // The next line of the batch waits for a slot, and now the request too.
    await waitingCount(own.url, 2);
    expect(upstream.total).toBe(count);
    answerChat(held[0] as Exchange);
    const next = await upstream.next();
    expect(userOf(next)).toBe("interactive");
    answerChat(next);
    expect((await answer).status).toBe(200);
    expect((await own.openai.batches.retrieve(batch.id)).status).toBe("in_progress");
    await answerRest(held.slice(1), 23);
    expect((await own.ended(batch.id)).request_counts).toEqual({
      total: 24,
      completed: 24,
      failed: 0,
    });
  });

  test("one goes out at once where a slot is kept for it", async () => {
    const slots = { min_concurrency: 4, max_concurrency: 4, interactive_reserve: 1 };
    await using own = await serviceFor(upstream.url, slots);
    const { batch, held } = await busyBatch(own, 3, 12);
    const answer = ask(INTERACTIVE, own);
    const next = await upstream.next();
    expect(userOf(next)).toBe("interactive");
    answerWith(next, { ok: true });
    expect(await (await answer).json()).toEqual({ ok: true });
    await answerRest(held, 12);
    expect((await own.ended(batch.id)).request_counts?.completed).toBe(12);
  });
});
