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
