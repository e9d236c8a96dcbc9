import { gzipSync } from "node:zlib";
import type OpenAI from "openai";
import { describe, expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { answerChat, answerWith } from "../support/given.ts";
import { CHAT, Interactive, serviceFor, sse } from "../support/interactive.ts";
import { waitingCount } from "../support/prometheus.ts";
import { chatLines, startTestService, type TestService } from "../support/service.ts";
import { wireOf } from "../support/test-http.ts";
import { type Exchange, startUpstream, type TestUpstream } from "../support/upstream.ts";

let upstream: TestUpstream;
let service: TestService;
const client = forAllTests(await Interactive.start());
({ upstream, service } = client);

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
      const answer = client.post(path, JSON.stringify(body));
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
    const answer = client.post("/v1/chat/completions", body);
    const exchange = await upstream.next();
    expect(exchange.body).toBe(body);
    answerChat(exchange);
    await answer;
  });

  test.each([200, 201, 400, 409, 418, 422, 500])("of answers with status %i", async (status) => {
    const body = Buffer.from([0x7b, 0x0a, 0xff, 0x00, 0x0d, 0x0a, 0xf0, 0x9f]);
    const [answer, { response }] = await client.asked();
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
    const [answer, { response }] = await client.asked({ ...CHAT, stream: true });
    response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-cache" });
    response.end(text);
    const seen = await answer;
    expect(seen.headers.get("content-length")).toBeNull();
    expect(seen.headers.get("cache-control")).toBe("no-cache");
    expect(await seen.text()).toBe(text);
  });
});

test("headers that concern the client pass, all others stay between the two servers", async () => {
  const [answer, { headers, response }] = await client.asked();
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
    request_id: seen["x-request-id"],
    upstream_request_id: "req-of-upstream",
  });
});

test("a project with a rate is told how much of its own rate is left, not of the upstream's", async () => {
  const rate = { name: "default", quotas: { requests_per_minute: 7 } };
  await using limited = await serviceFor(upstream.url, {}, { projects: [rate] });
  const answer = client.ask(CHAT, limited);
  const { response } = await upstream.next();
  response.writeHead(200, {
    "content-type": "application/json",
    "x-ratelimit-limit-requests": "10000",
    "x-ratelimit-remaining-requests": "9999",
    "x-ratelimit-reset-requests": "8.64s",
    "x-ratelimit-limit-tokens": "200000",
  });
  response.end("{}");
  const { headers } = await answer;
  expect(headers.get("x-ratelimit-limit-requests")).toBe("7");
  expect(headers.get("x-ratelimit-remaining-requests")).toBe("6");
  expect(headers.get("x-ratelimit-reset-requests")).toMatch(/^\d+s$/);
  expect(headers.get("x-ratelimit-limit-tokens")).toBe("200000");
});

test("the trace of a client goes on upstream, and what is none does not", async () => {
  const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  const traceOf = async (traceparent: string) => {
    const init = { headers: { traceparent } };
    const answer = client.post("/v1/chat/completions", JSON.stringify(CHAT), init);
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
      const answer = client.ask({ ...CHAT, model }, own);
      const exchange = await upstream.next();
      expect(JSON.parse(exchange.body)).toEqual({ ...CHAT, model: "usual" });
      answerChat(exchange);
      expect((await answer).status).toBe(200);
    }
  });

  test("goes out under the name that the upstream has for it", async () => {
    const models = [{ name: "ours", upstream_model: "theirs" }];
    await using own = await serviceFor(upstream.url, { models });
    const answer = client.ask({ model: "ours", x: 1 }, own);
    const exchange = await upstream.next();
    expect(exchange.body).toBe('{"model":"theirs","x":1}');
    answerChat(exchange);
    await answer;
  });

  test("has at most as many bytes as in a batch", async () => {
    const exchange = upstream.next();
    const tooLong = client.ask({ ...CHAT, model: "m".repeat(1_025) });
    const first = [tooLong.then(({ status }) => status), exchange.then(() => "sent")];
    expect(await Promise.race(first)).toBe(404);
    const answer = client.ask({ ...CHAT, model: "m".repeat(1_024) });
    answerChat(await exchange);
    expect((await answer).status).toBe(200);
  });

  test("must be named, and known", async () => {
    await using own = await serviceFor(upstream.url, { models: ["m"] });
    const none = await client.ask({ messages: [] }, own);
    expect(none.status).toBe(400);
    expect((await wireOf(none)).error).toEqual({
      message: "you must provide a model parameter",
      type: "invalid_request_error",
      param: null,
      code: null,
    });
    const unknown = await client.ask({ model: "x" }, own);
    expect(unknown.status).toBe(404);
    expect((await wireOf(unknown)).error).toEqual({
      message: "The model `x` does not exist or you do not have access to it.",
      type: "invalid_request_error",
      param: null,
      code: "model_not_found",
    });
    const number = await client.ask({ model: 5 }, own);
    expect(number.status).toBe(400);
    expect((await wireOf(number)).error).toMatchObject({
      message: "Invalid type for 'model': expected a string, but got an integer instead.",
      param: "model",
      code: "invalid_type",
    });
    expect(
      (await wireOf(await client.ask({ model: "x".repeat(100_000) }, own))).error.message,
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
      expect(error.message.includes("The body is empty")).toBe(text === "");
      expect(upstream.total).toBe(before);
    },
  );

  test("when it has a second model, in other letters, which a server in Go would take", async () => {
    const before = upstream.total;
    for (const name of ["Model", "MODEL"]) {
      const answer = await client.ask({ ...CHAT, [name]: "another" });
      expect(answer.status).toBe(400);
      expect((await wireOf(answer)).error).toMatchObject({
        code: "unknown_parameter",
        param: name,
      });
    }
    expect(upstream.total).toBe(before);
  });

  test("when it has two models, of which a server may take the first", async () => {
    const before = upstream.total;
    const answer = await client.post(
      "/v1/chat/completions",
      '{"model":"another","messages":[],"model":"m"}',
    );
    expect(answer.status).toBe(400);
    expect((await wireOf(answer)).error).toMatchObject({ code: "invalid_value", param: "model" });
    expect(upstream.total).toBe(before);
  });

  test("when its body is compressed", async () => {
    const headers = { "content-encoding": "gzip" };
    const init = { method: "POST", headers, body: gzipSync(JSON.stringify(CHAT)) };
    const answer = await fetch(`${service.url}/v1/chat/completions`, init);
    expect(answer.status).toBe(400);
    expect((await wireOf(answer)).error.param).toBe("Content-Encoding");
  });

  test("when it is longer than a line may be", async () => {
    await using own = await serviceFor(upstream.url, {}, { limits: { max_line_bytes: 2_048 } });
    const answer = await client.ask({ ...CHAT, padding: "x".repeat(2_048) }, own);
    expect(answer.status).toBe(413);
    expect((await wireOf(answer)).error.message).toContain("2048 bytes");
  });
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
    const answer = client.ask(INTERACTIVE, own);
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
    const answer = client.ask(INTERACTIVE, own);
    const next = await upstream.next();
    expect(userOf(next)).toBe("interactive");
    answerWith(next, { ok: true });
    expect(await (await answer).json()).toEqual({ ok: true });
    await answerRest(held, 12);
    expect((await own.ended(batch.id)).request_counts?.completed).toBe(12);
  });
});
