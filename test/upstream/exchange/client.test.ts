import { getEventListeners } from "node:events";
import { createServer as createHttpServer } from "node:http";
import { createServer } from "node:net";
import { describe, expect, onTestFinished, test } from "vitest";
import type { Outcome } from "../../../src/batch/outcome.ts";
import { systemClock } from "../../../src/clock.ts";
import type { Client } from "../../../src/upstream/exchange/client.ts";
import { fragileJson } from "../../support/answers.ts";
import { type ClientSettings, clientOf, exchangeOf, never, send } from "../../support/client.ts";
import { listening } from "../../support/listening.ts";
import { startUpstream, type TestUpstream, type UpstreamOptions } from "../../support/upstream.ts";

const DAY_MS = 24 * 60 * 60 * 1000;

async function setUp(settings: ClientSettings = {}, upstreamOptions: UpstreamOptions = {}) {
  const upstream = await startUpstream(upstreamOptions);
  const client = clientOf(upstream.url, settings);
  onTestFinished(async () => {
    await client.close();
    await upstream.close();
  });
  return { upstream, client, say: (prompt: string, abort = never) => say(client, prompt, abort) };
}

const chatBody = (prompt: string) =>
  Buffer.from(JSON.stringify({ model: "m", messages: [{ role: "user", content: prompt }] }));

const say = (client: Client, prompt: string, abort = never): Promise<Outcome> =>
  send(client, { body: chatBody(prompt), abort });

const bodyText = (outcome: Outcome) =>
  outcome.kind === "answered" || outcome.kind === "overloaded" ? outcome.body.toString() : null;

const seenBy = (upstream: TestUpstream) => upstream.seen[0]!;

describe("a request", () => {
  test("carries the body byte for byte, and the headers of a JSON client", async () => {
    const { upstream, client } = await setUp({ api_key: "secret-key" });
    const body = '{ "model":"m",\n"prompt":"é \\u00e9", "seed": 9007199254740993 }';
    await send(client, { endpoint: "/v1/completions", body: Buffer.from(body) });
    expect(seenBy(upstream)).toMatchObject({ path: "/v1/completions", body });
    expect(seenBy(upstream).headers).toMatchObject({
      authorization: "Bearer secret-key",
      "content-type": "application/json",
      accept: "application/json",
      "accept-encoding": "identity",
      "user-agent": expect.stringMatching(/^batchd\/\d+\.\d+\.\d+$/),
    });
  });

  test("has no authorization without a key, and basic authentication from the address", async () => {
    const { upstream, say } = await setUp();
    await say("no key");
    const withPassword = clientOf(upstream.url.replace("http://", "http://ann:p%40ss@"));
    await send(withPassword, { endpoint: "/v1/completions", body: chatBody("") });
    await withPassword.close();
    expect(upstream.seen.map((seen) => seen.headers.authorization)).toEqual([
      undefined,
      `Basic ${Buffer.from("ann:p@ss").toString("base64")}`,
    ]);
  });

  test("carries what the configuration adds to it, and leaves the rest as it was", async () => {
    const { upstream, client } = await setUp({
      headers: { "X-Team": "search", "User-Agent": "me/1" },
      defaults: { temperature: 0, n: 2 },
      extra_body: { user: "batch" },
    });
    await send(client, {
      endpoint: "/v1/completions",
      body: Buffer.from('{"model":"m", "n":1.0, "prompt":"\\u00e9"}'),
    });
    expect(seenBy(upstream)).toMatchObject({
      body: '{"model":"m", "n":1.0, "prompt":"\\u00e9","user":"batch","temperature":0}',
      headers: { "x-team": "search", "user-agent": "me/1" },
    });
  });

  test("finds its path under any base: with a slash at the end, and with a query", async () => {
    const { upstream } = await setUp();
    for (const suffix of ["/", "?api-version=1"]) {
      const client = clientOf(`${upstream.url}${suffix}`);
      expect(await say(client, "hello")).toMatchObject({ kind: "answered", status: 200 });
      await client.close();
    }
    expect(upstream.seen.map((seen) => seen.path)).toEqual(
      Array.from({ length: 2 }, () => "/v1/chat/completions"),
    );
  });
});

describe("an answer", () => {
  test("comes with its status, its request id and the bytes of its body", async () => {
    const { say } = await setUp();
    const outcome = await say("[[bigint]]");
    expect(outcome).toMatchObject({ kind: "answered", status: 200, requestId: "req-1" });
    expect(bodyText(outcome)).toBe(fragileJson("[[bigint]]"));
  });

  test("is put together from pieces", async () => {
    const { say } = await setUp();
    const outcome = await say("[[big 300000]] [[slow 4 1]]");
    expect(bodyText(outcome)).toHaveLength(300_000);
    expect(outcome).toMatchObject({ kind: "answered", status: 200 });
  });

  test.each([400, 409, 422, 500, 501, 502])("of status %i is an answer", async (status) => {
    const { say } = await setUp();
    const outcome = await say(`[[status ${status}]]`);
    expect(outcome).toMatchObject({ kind: "answered", status });
    expect(bodyText(outcome)).toContain(`told to answer ${status}`);
  });

  test.each([
    [429, "retry-after-ms 50", 50],
    [503, "retry-after 2", 2_000],
    [529, "retry-after 0.5", 500],
    [498, "retry-after 2", 2_000],
    [429, "retry-after-ms 70 retry-after 9", 70],
    [429, "retry-after soon", null],
    [429, "retry-after 9999999", DAY_MS],
    [429, "retry-after 99999999999999999999", DAY_MS],
    [503, "retry-after Fri,_31_Dec_9999_23:59:59_GMT", DAY_MS],
    [429, "delay 0", null],
    [503, "retry-after Wed,_21_Oct_2015_07:28:00_GMT", 0],
  ])("of status %i is an overload (%s)", async (status, directive, retryAfterMs) => {
    const { say } = await setUp();
    const outcome = await say(`[[status ${status} ${directive}]]`);
    expect(outcome).toMatchObject({ kind: "overloaded", status, retryAfterMs });
  });

  test.each([0, -3_600_000, 3_600_000])(
    "may ask to be left alone until a date, by its own clock, where the one of this machine is off by %i ms",
    async (offMs) => {
      const clock = { ...systemClock, nowMs: () => systemClock.nowMs() + offMs };
      const { say } = await setUp({ clock });
      const atSeconds = Math.floor(Date.now() / 1_000) + 600;
      const date = new Date(atSeconds * 1_000).toUTCString().replaceAll(" ", "_");
      for (const directive of [
        `retry-after ${date}`,
        `retry-after ${atSeconds}`,
        `retry-after-ms ${atSeconds}000`,
      ]) {
        const outcome = await say(`[[status 503 ${directive}]]`);
        const { retryAfterMs } = outcome as Extract<typeof outcome, { kind: "overloaded" }>;
        expect(retryAfterMs).toBeGreaterThan(480_000);
        expect(retryAfterMs).toBeLessThanOrEqual(600_000);
      }
    },
  );

  test.each([
    ["[[html 502]]", "<html>\n<body>status 502</body>\n</html>"],
    ["[[text 400]]", "plain words for status 400"],
    ["[[empty 422]]", "HTTP 422 from the model server"],
    ["[[empty 599]]", "HTTP 599 from the model server"],
  ])(
    "that is an error without JSON is put into the error envelope: %s",
    async (prompt, message) => {
      const { say } = await setUp();
      expect(JSON.parse(bodyText(await say(prompt))!)).toEqual({
        error: { message, type: "upstream_error", param: null, code: null },
      });
    },
  );

  test.each([
    [
      "[[text 200]]",
      "status 200 with a body that is not one JSON value: plain words for status 200",
    ],
    ["[[empty 200]]", "status 200 with an empty body"],
    ["[[empty 204]]", "status 204 with an empty body"],
    ["[[truncate]]", expect.stringMatching(/^status 200 with a body .*: \{"id":"chatcmpl-/)],
    ["[[sse]]", expect.stringMatching(/^status 200 with a body .*: data: \{"id":/)],
  ])("that is a success without JSON is no answer: %s", async (prompt, detail) => {
    const { say } = await setUp();
    const outcome = await say(prompt);
    expect(outcome).toEqual({ kind: "broken", detail });
    expect((outcome as { detail: string }).detail.length).toBeLessThan(200);
  });

  test("of any status comes with what its headers say of rate limits", async () => {
    const headers = { "x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "59" };
    const statuses = [200, 429, 500];
    const port = await listening(
      createHttpServer((_, response) => response.writeHead(statuses.shift()!, headers).end("{}")),
    );
    const client = clientOf(`http://127.0.0.1:${port}/v1`);
    onTestFinished(() => client.close());
    for (const kind of ["answered", "overloaded", "answered"]) {
      const exchange = exchangeOf(client, { body: chatBody("hello") });
      expect(await client.send(exchange, never)).toMatchObject({
        outcome: { kind },
        hints: { requests: { limit: 60, remaining: 59 } },
      });
    }
  });

  test("longer than allowed is cut off with its connection, and the next one is fine", async () => {
    const { say, upstream } = await setUp({ maxAnswerBytes: 2_000, max_concurrency: 1 });
    expect(await say("[[big 2000]]")).toMatchObject({ kind: "answered" });
    expect(await say("[[big 2001]]")).toEqual({
      kind: "broken",
      detail: "an answer longer than 2000 bytes",
    });
    expect(await say("[[big 2000]]")).toMatchObject({ kind: "answered" });
    expect(upstream.connectionCount).toBe(2);
  });
});

describe("no answer", () => {
  test.each([
    ["[[reset]]", "connection reset"],
    ["[[reset-mid]]", "connection reset"],
    ["[[garbage]]", "the answer is not HTTP"],
  ])("after %s is broken", async (prompt, detail) => {
    const { say } = await setUp();
    expect(await say(prompt)).toEqual({ kind: "broken", detail });
  });

  test("from a closed port is unreachable, and the address stays with us", async () => {
    const { upstream, client } = await setUp();
    await upstream.close();
    expect(await say(client, "hello")).toEqual({
      kind: "unreachable",
      detail: "connection refused",
    });
  });

  test("from an unknown host is unreachable", async () => {
    const client = clientOf("http://no-such-host.invalid/v1");
    onTestFinished(() => client.close());
    expect(await say(client, "hello")).toMatchObject({ kind: "unreachable" });
  });

  test("after a failure that has no words of ours is unreachable, and the address stays with us", async () => {
    const client = clientOf(`http://${"internal.".repeat(30)}invalid/v1`);
    onTestFinished(() => client.close());
    expect(await say(client, "hello")).toEqual({
      kind: "unreachable",
      detail: "the exchange failed (EINVAL)",
    });
  });

  test("from a server that speaks no TLS is unreachable over https", async () => {
    const { upstream } = await setUp();
    const client = clientOf(upstream.url.replace("http:", "https:"));
    onTestFinished(() => client.close());
    expect(await say(client, "hello")).toMatchObject({
      kind: "unreachable",
      detail: "TLS failed: the server answers without it",
    });
  });

  test("within the time for a whole answer is timed out, even while pieces arrive", async () => {
    const { say } = await setUp({ timeout_seconds: 1 });
    const outcomes = await Promise.all([say("[[hang]]"), say("[[slow 40 100]]")]);
    expect(outcomes).toEqual([
      { kind: "timed_out", afterMs: 1_000 },
      { kind: "timed_out", afterMs: 1_000 },
    ]);
  });

  test("never names the key, even when the server echoes it", async () => {
    const echo = createServer((socket) => {
      socket.on("error", () => {});
      socket.once("data", (request) => {
        const key = /Bearer (\S+)/.exec(request.toString())?.[1] ?? "";
        socket.end(`HTTP/1.1 200 OK\r\ncontent-length: ${key.length}\r\n\r\n${key}`);
      });
    });
    await new Promise<void>((resolve) => echo.listen(0, "127.0.0.1", resolve));
    const { port } = echo.address() as { port: number };
    const client = clientOf(`http://127.0.0.1:${port}/v1`, { api_key: "sk-very-secret" });
    onTestFinished(async () => {
      await client.close();
      echo.close();
    });
    const outcome = await say(client, "hello");
    expect(outcome).toEqual({
      kind: "broken",
      detail: "status 200 with a body that is not one JSON value: [redacted]****",
    });
  });
});

describe("an abort", () => {
  test("interrupts what is under way, drops its connection and leaves no listener", async () => {
    const { upstream, say } = await setUp();
    const abort = new AbortController();
    const attempts = [say("[[hang]]", abort.signal), say("[[hang]] too", abort.signal)];
    await upstream.reached(2);
    expect(getEventListeners(abort.signal, "abort")).toHaveLength(1);
    abort.abort();
    expect(await Promise.all(attempts)).toEqual([{ kind: "interrupted" }, { kind: "interrupted" }]);
    expect(getEventListeners(abort.signal, "abort")).toHaveLength(0);
    await upstream.idle();
    expect(await say("again", abort.signal)).toEqual({ kind: "interrupted" });
    expect(upstream.total).toBe(2);
  });

  test("before a connection took the request means that the server never sees it", async () => {
    const { upstream, say } = await setUp();
    const abort = new AbortController();
    const attempt = say("never sent", abort.signal);
    abort.abort();
    expect(await attempt).toEqual({ kind: "interrupted" });
    expect(await say("sent")).toMatchObject({ kind: "answered" });
    expect([...upstream.received.keys()]).toEqual(["sent"]);
  });

  test("has one listener, however many answers came before it", async () => {
    const { say } = await setUp();
    const abort = new AbortController();
    for (const text of ["one", "two", "three"]) await say(text, abort.signal);
    expect(getEventListeners(abort.signal, "abort")).toHaveLength(1);
  });

  test("by closing the client interrupts too", async () => {
    const { upstream, client } = await setUp();
    const attempt = say(client, "[[hang]]");
    await upstream.reached(1);
    await client.close();
    expect(await attempt).toEqual({ kind: "interrupted" });
    expect(await say(client, "late")).toEqual({ kind: "interrupted" });
  });
});
