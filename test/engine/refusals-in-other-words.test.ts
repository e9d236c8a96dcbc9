/**
 * Some servers call each of their rate limits a quota, in the words of an account without credit. Others refuse a key
 * or an account with 400, as if the line were wrong.
 */
import { describe, expect, test } from "vitest";
import { FakeClock } from "../support/fake-clock.ts";
import { type Given, GOOD, refusal } from "../support/given.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

describe("a rate limit that is called a quota fails no line", () => {
  const dashScope = refusal(429, {
    message: "You exceeded your current quota, please check your plan and billing details.",
    type: "insufficient_quota",
    code: "insufficient_quota",
  });
  const gemini: Given = {
    status: 429,
    body: [
      {
        error: {
          code: 429,
          message:
            "You exceeded your current quota, please check your plan and billing details.\nPlease retry in 7.5s.",
          status: "RESOURCE_EXHAUSTED",
        },
      },
    ],
  };

  test.each([
    ["DashScope", dashScope],
    ["Gemini", gemini],
  ])("in the words of %s", async (_name, refused) => {
    const clock = new FakeClock();
    const served = { window: 0, lines: 0 };
    const answers = () => {
      const window = Math.floor(clock.elapsedMs() / 10_000);
      if (window !== served.window) Object.assign(served, { window, lines: 0 });
      served.lines += 1;
      return served.lines > 20 ? refused : GOOD;
    };
    await using upstream = await startUpstream({ answers });
    await using service = await startTestService({ clock, upstreamUrl: upstream.url });

    const { id } = await service.submit(chatLines(120));
    const isOver = () => service.events.count("batch.completed", { batch: id }) > 0;
    for (let polls = 0; polls < 4_000 && !isOver(); polls++) {
      await service.openai.batches.retrieve(id);
      clock.advance(250);
    }

    const { request_counts } = await service.openai.batches.retrieve(id);
    expect(request_counts).toEqual({ total: 120, completed: 120, failed: 0 });
  });
});

test.each([
  [
    "Anthropic without credit",
    refusal(400, {
      message: "Your credit balance is too low to access the Anthropic API.",
      type: "invalid_request_error",
    }),
    "quota",
  ],
  [
    "xAI for a wrong key",
    {
      status: 400,
      body: {
        code: "Client specified an invalid argument",
        error: "Incorrect API key provided: xa***yz.",
      },
    },
    "credentials",
  ],
  [
    "DashScope without credit",
    refusal(400, { code: "Arrearage", message: "Access denied.", type: "Arrearage" }),
    "quota",
  ],
] satisfies [string, Given, string][])(
  "the 400 of %s ends no line",
  async (_name, given, reason) => {
    await using upstream = await startUpstream({ answers: () => given });
    await using service = await startTestService({
      upstreamUrl: upstream.url,
      config: { engine: { stop_grace_seconds: 0, drain_grace_seconds: 0 } },
    });

    const { id } = await service.submit(chatLines(120));
    await service.events.reached("upstream.refused", { reason });

    expect(upstream.seen.length).toBeLessThan(100);
    expect((await service.openai.batches.retrieve(id)).request_counts?.failed).toBe(0);
  },
);

const rateLimited = (message: string) =>
  refusal(429, { message, type: "tokens", param: null, code: "rate_limit_exceeded" });
const tooLarge = rateLimited(
  "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 31538. The input or output tokens must be reduced in order to run successfully.",
);

test("a line larger than the limit of a minute ends with the 429 that says so, and others wait for theirs", async () => {
  const noRoom = rateLimited(
    "Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Used 29000, Requested 1200. Please try again in 20ms.",
  );
  const refused = new Set<string>();
  await using upstream = await startUpstream({
    answers: ({ body }) => {
      if (body.includes("too long")) return tooLarge;
      if (refused.has(body)) return GOOD;
      refused.add(body);
      return noRoom;
    },
  });
  await using service = await startTestService({ upstreamUrl: upstream.url });

  const batch = await service.run(chatLines(3, (n) => (n === 2 ? "too long" : `short ${n}`)));

  expect(batch.request_counts).toEqual({ total: 3, completed: 2, failed: 1 });
  expect(upstream.seen.filter(({ body }) => body.includes("too long"))).toHaveLength(1);
  const [row] = await service.rows(batch.error_file_id);
  expect(row?.response).toMatchObject({ status_code: 429, body: tooLarge.body });
});

test("a line larger than the limit of one target is answered by another", async () => {
  await using small = await startUpstream({ answers: () => tooLarge });
  await using large = await startUpstream({ answers: () => GOOD });
  const upstreams = [small, large].map(({ url }, i) => ({
    name: `u${i}`,
    base_url: url,
    models: ["*"],
  }));
  await using service = await startTestService({ config: { upstreams } });

  const batch = await service.run(chatLines(8));

  expect(small.seen.length).toBeGreaterThan(0);
  expect(batch.request_counts).toEqual({ total: 8, completed: 8, failed: 0 });
});

test("a client whose request is larger than the limit of a minute pauses no target", async () => {
  const answers = ({ body }: { body: string }) =>
    body.includes("too long") ? { ...tooLarge, headers: { "retry-after": "3600" } } : GOOD;
  await using upstream = await startUpstream({ answers });
  await using service = await startTestService({ upstreamUrl: upstream.url });

  const refused = await fetch(`${service.url}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ model: "m", messages: [{ role: "user", content: "too long" }] }),
  });
  const said = (await refused.json()) as object;
  const batch = await service.run(chatLines(1));

  expect([refused.status, said]).toEqual([429, tooLarge.body]);
  expect(batch.request_counts).toEqual({ total: 1, completed: 1, failed: 0 });
});

test("a 200 whose body is an error counts as the status that the error has as its code", async () => {
  const saysWith200 = (error: object): Given => ({ body: { error, user_id: "user_x" } });
  const broken = saysWith200({ message: "Provider returned error", code: 502 });
  const wrong = saysWith200({ message: "Provider returned error", code: 400 });
  // The server has taken the request, so its address is right.
  const missing = saysWith200({ message: "Provider returned error", code: 404 });
  // An answer of `/v1/responses` has such a key, and other servers have codes in words.
  const whole: Given = { body: { error: null, choices: [] } };
  const inWords = saysWith200({ message: "Who knows", code: "unknown" });
  const twice: Given = { body: '{"error":{"code":502},"error":null}' };
  const asked: Record<string, number> = {};
  await using upstream = await startUpstream({
    answers: ({ body }) => {
      const kind = /broken|wrong|missing|whole|words|twice/.exec(body)?.[0] ?? "";
      asked[kind] = (asked[kind] ?? 0) + 1;
      if (kind === "broken") return asked[kind] < 3 ? broken : GOOD;
      return { wrong, missing, whole, words: inWords, twice }[kind] ?? GOOD;
    },
  });
  await using service = await startTestService({ upstreamUrl: upstream.url });

  const kinds = ["broken", "wrong", "missing", "whole", "words", "twice"];
  const batch = await service.run(chatLines(6, (n) => kinds[n - 1] ?? ""));

  expect(asked).toEqual({ broken: 3, wrong: 1, missing: 1, whole: 1, words: 1, twice: 1 });
  expect(batch.request_counts).toEqual({ total: 6, completed: 4, failed: 2 });
  expect(await service.rows(batch.error_file_id)).toMatchObject([
    { error: null, response: { status_code: 400, body: wrong.body } },
    { error: null, response: { status_code: 404, body: missing.body } },
  ]);
  const done = (await service.rows(batch.output_file_id)).map(({ response }) => response?.body);
  expect(done).toMatchObject([GOOD.body, whole.body, inWords.body, { error: null }]);
});
