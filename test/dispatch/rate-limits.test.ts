/** Limits per minute that an upstream enforces, in the ways in which providers do. */
import { describe, expect, test } from "vitest";
import type { ModelServer, ModelServerStats } from "../support/model-server.ts";
import { MINUTE_MS } from "../support/rate-limits.ts";
import { seededRandom } from "../support/seeded-random.ts";
import { MAX_TOKENS, upstreamAt, World } from "../support/world.ts";

const MANY = { max_concurrency: 512 };
const RULES = ["token_bucket", "fixed_window", "sliding_window"] as const;
const RUN_MINUTES = 3;
/** They are more than any server lets through meanwhile. */
const ENDLESS = 100_000;

/** Prompts of one to a hundred words. */
function anyPrompt(): () => string {
  const random = seededRandom(7);
  return () => "word ".repeat(1 + Math.floor(100 * random()));
}

/** Sends lines for some minutes, as many as go. */
async function runAgainst(
  world: World,
  server: ModelServer,
  upstream: Readonly<Record<string, unknown>>,
): Promise<ModelServerStats> {
  const dispatcher = world.dispatcher(upstreamAt(server, { ...MANY, ...upstream }));
  const stop = new AbortController();
  return world.run(async () => {
    const sending = dispatcher.sendLines(ENDLESS, { stop: stop.signal, prompt: anyPrompt() });
    await world.sleep(RUN_MINUTES * MINUTE_MS);
    stop.abort();
    await sending;
    return server.stats();
  });
}

/** The share of the requests after the first minute that were refused. */
function refusedShareOf({ minutes }: ModelServerStats): number {
  const later = minutes.slice(1);
  const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0);
  return (
    sum(later.map((minute) => minute.rateLimited)) / sum(later.map((minute) => minute.arrived))
  );
}

const servedAfterFirstMinute = ({ minutes }: ModelServerStats) =>
  minutes
    .slice(1, RUN_MINUTES)
    .reduce((sum, { arrived, rateLimited }) => sum + arrived - rateLimited, 0);

describe.for(RULES)("requests per minute, by %s", (rule) => {
  test.for(["configured", "learned from the headers"])(
    "are used up and obeyed when %s",
    async (by) => {
      await using world = new World();
      const perMinute = 200;
      const server = await world.server({
        serviceMs: 800,
        jitter: 0.5,
        requests: { perMinute, rule },
      });

      const stats = await runAgainst(
        world,
        server,
        by === "configured" ? { requests_per_minute: perMinute } : {},
      );

      expect(refusedShareOf(stats)).toBeLessThan(0.01);
      expect(servedAfterFirstMinute(stats)).toBeGreaterThan(0.9 * perMinute * (RUN_MINUTES - 1));
    },
  );
});

describe.for(RULES)("tokens per minute, by %s", (rule) => {
  test.for(["configured", "learned from the headers"])(
    "are used up and obeyed when %s",
    async (by) => {
      await using world = new World();
      const perMinute = 28_000;
      const server = await world.server({
        serviceMs: 800,
        jitter: 0.5,
        outputTokens: [MAX_TOKENS / 4, MAX_TOKENS],
        tokens: { perMinute, rule },
      });

      const stats = await runAgainst(
        world,
        server,
        by === "configured" ? { tokens_per_minute: perMinute } : {},
      );

      expect(refusedShareOf(stats)).toBeLessThan(0.01);
      // Some 140 tokens each.
      expect(servedAfterFirstMinute(stats)).toBeGreaterThan(
        (0.8 * perMinute * (RUN_MINUTES - 1)) / 145,
      );
    },
  );
});

test("both limits are obeyed by two dispatchers that share them", async () => {
  await using world = new World();
  const server = await world.server({
    serviceMs: 500,
    jitter: 0.5,
    outputTokens: [MAX_TOKENS / 4, MAX_TOKENS],
    requests: { perMinute: 300, rule: "token_bucket" },
    tokens: { perMinute: 60_000, rule: "token_bucket" },
  });

  const stats = await runTwo(world, server);

  expect(refusedShareOf(stats)).toBeLessThan(0.05);
  expect(servedAfterFirstMinute(stats)).toBeGreaterThan(0.7 * 300 * (RUN_MINUTES - 1));
});

async function runTwo(world: World, server: ModelServer): Promise<ModelServerStats> {
  const stop = new AbortController();
  const both = [1, 2].map(() => world.dispatcher(upstreamAt(server, MANY)));
  return world.run(async () => {
    const sending = both.map((dispatcher) =>
      dispatcher.sendLines(ENDLESS, { stop: stop.signal, prompt: anyPrompt() }),
    );
    await world.sleep(RUN_MINUTES * MINUTE_MS);
    stop.abort();
    await Promise.all(sending);
    return server.stats();
  });
}

test.for(["seconds", "milliseconds"] as const)(
  "no request comes before the end of a pause that was asked for in %s",
  async (retryHint) => {
    await using world = new World();
    const server = await world.server({ serviceMs: 400, jitter: 0.5, retryHint });
    const dispatcher = world.dispatcher(upstreamAt(server, { max_concurrency: 20 }));

    const untilMs = await world.run(async () => {
      const sending = ["model-a", "model-b"].map((model) => dispatcher.sendLines(400, { model }));
      await server.whenServed(300);
      server.pause(90_000);
      const pausedUntilMs = world.clock.nowMs() + 90_000;
      // Another line, taken on in the middle of it, has to wait as well.
      await world.sleep(45_000);
      sending.push(dispatcher.sendLines(1, { model: "model-c" }));
      await Promise.all(sending);
      return pausedUntilMs;
    });

    const { fates } = server.stats();
    expect(fates.served).toBe(801);
    const firstRefusal = server.arrivals.find(({ fate }) => fate === "paused");
    const tooEarly = server.arrivals.filter(
      ({ atMs }) => atMs > firstRefusal!.atMs && atMs < untilMs,
    );
    expect(tooEarly).toEqual([]);
    // At most those that were under way when it was said for the first time.
    expect(fates.paused).toBeLessThanOrEqual(20);
    expect(server.arrivals.find(({ model }) => model === "model-c")!.atMs).toBeGreaterThanOrEqual(
      untilMs,
    );
  },
);
