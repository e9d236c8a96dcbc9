/** Lines of batches beside clients that ask without end, at an upstream whose rate is what is short. */
import { expect, test } from "vitest";
import type { ModelServer } from "../support/model-server.ts";
import { upstreamAt, World } from "../support/world.ts";

const ASKERS = 16;
const MINUTES = 5;
const MINUTE_MS = 60_000;
const words = (count: number) => () => "word ".repeat(count);

/** What both sorts have sent after some minutes in which each wanted more than there was. */
async function bothAtOnce(
  world: World,
  server: ModelServer,
  { limits, prompt }: { limits: object; prompt: () => string },
) {
  const dispatcher = world.dispatcher(upstreamAt(server, { max_concurrency: 256, ...limits }));
  const stop = new AbortController();
  const askOnAndOn = async () => {
    while (!stop.signal.aborted) expect(await dispatcher.ask("somebody")).toBe(200);
  };
  await world.run(async () => {
    const asking = Array.from({ length: ASKERS }, askOnAndOn);
    const sending = dispatcher.sendLines(100_000, { stop: stop.signal, prompt });
    await world.sleep(MINUTES * MINUTE_MS);
    stop.abort();
    await Promise.all([...asking, sending]);
  });
  const interactive = server.arrivals.filter(({ line }) => line === "somebody").length;
  return { interactive, lines: server.arrivals.length - interactive };
}

test("a quarter of the requests a minute is for lines", async () => {
  await using world = new World();
  const server = await world.server({ serviceMs: 500, jitter: 0.5 });
  const limits = { requests_per_minute: 120 };
  const { interactive, lines } = await bothAtOnce(world, server, { limits, prompt: words(1) });

  expect(interactive + lines).toBeGreaterThan(0.9 * 120 * MINUTES);
  expect(lines / (interactive + lines)).toBeGreaterThan(0.22);
  expect(lines / (interactive + lines)).toBeLessThan(0.28);
});

test("a quarter of the tokens a minute is for lines, also when a line takes many times as many", async () => {
  await using world = new World();
  const server = await world.server({ serviceMs: 500, jitter: 0.5, outputTokens: [128, 128] });
  const limits = { tokens_per_minute: 60_000 };
  const { interactive, lines } = await bothAtOnce(world, server, { limits, prompt: words(2_000) });

  // Five bytes a word, four a token, and the answer on top.
  const lineTokens = lines * (2_500 + 128);
  const totalTokens = lineTokens + interactive * (2 + 128);
  expect(lines).toBeGreaterThan(0);
  expect(lineTokens / totalTokens).toBeGreaterThan(0.18);
  expect(lineTokens / totalTokens).toBeLessThan(0.32);
});
