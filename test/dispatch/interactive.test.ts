/** What interactive requests and lines make of a limit that each of them teaches. */
import { expect, test } from "vitest";
import { upstreamAt, World } from "../support/world.ts";

const LIMIT = 32;
const MINUTES = 5;

test("interactive requests alone, which say nothing of tokens, do not make a target look slow", async () => {
  await using world = new World();
  const server = await world.server({ serviceMs: 2_000, jitter: 0.5, outputTokens: [128, 128] });
  const dispatcher = world.dispatcher(upstreamAt(server, { max_concurrency: LIMIT }));
  const stop = new AbortController();
  const askOnAndOn = async () => {
    while (!stop.signal.aborted) expect(await dispatcher.ask("somebody")).toBe(200);
  };
  await world.run(async () => {
    await dispatcher.sendLines(1_000);
    const asking = Array.from({ length: LIMIT }, askOnAndOn);
    await world.sleep(MINUTES * 60_000);
    stop.abort();
    await Promise.all(asking);
  });
  const moves = dispatcher.events.all.filter(({ event }) => event === "target.limit_changed");
  expect(moves.some(({ to }) => to === LIMIT)).toBe(true);
  expect(moves.map(({ reason }) => reason)).not.toContain("slow");
});

/** The requests that the server serves at a time: no more of them finish more work. */
const SERVED = 32;
const LINES = 40;

test("small batches beside interactive requests leave the limit near what the target serves at a time", async () => {
  await using world = new World();
  const server = await world.server({
    capacity: SERVED,
    serviceMs: 2_000,
    jitter: 0.3,
    outputTokens: [64, 128],
  });
  const dispatcher = world.dispatcher(upstreamAt(server, { max_concurrency: 512 }));
  const stop = new AbortController();
  const askOnAndOn = async () => {
    while (!stop.signal.aborted) expect(await dispatcher.ask("somebody")).toBe(200);
  };
  await world.run(async () => {
    const asking = Array.from({ length: 600 }, askOnAndOn);
    const batches: Promise<unknown>[] = [];
    for (let i = 0; i < 20; i++) {
      batches.push(dispatcher.sendLines(LINES));
      await world.sleep(40_000);
    }
    stop.abort();
    await Promise.all([...asking, ...batches]);
  });
  expect(server.stats().maxPresent).toBeLessThan(4 * SERVED);
});

test("a line now and then keeps no limit low that interactive requests use", async () => {
  await using world = new World();
  const server = await world.server({ capacity: 8 * SERVED, serviceMs: 2_000, jitter: 0.3 });
  const dispatcher = world.dispatcher(upstreamAt(server, { max_concurrency: 512 }));
  const stop = new AbortController();
  const askOnAndOn = async () => {
    while (!stop.signal.aborted) expect(await dispatcher.ask("somebody")).toBe(200);
  };
  await world.run(async () => {
    const asking = Array.from({ length: 200 }, askOnAndOn);
    const lines: Promise<unknown>[] = [];
    for (let i = 0; i < 40; i++) {
      lines.push(dispatcher.sendLines(1));
      await world.sleep(3_000);
    }
    stop.abort();
    await Promise.all([...asking, ...lines]);
  });
  expect(dispatcher.upstreams.listTargets()[0]?.limit).toBeGreaterThan(4 * SERVED);
});

test("one interactive request at a time raises no limit, however many slots are reserved", async () => {
  await using world = new World();
  const server = await world.server({ serviceMs: 2_000 });
  const limits = { max_concurrency: 512, interactive_reserve: 100 };
  const dispatcher = world.dispatcher(upstreamAt(server, limits));
  await world.run(async () => {
    for (let i = 0; i < 100; i++) expect(await dispatcher.ask("somebody")).toBe(200);
  });
  expect(dispatcher.upstreams.listTargets()[0]?.limit).toBe(16);
});
