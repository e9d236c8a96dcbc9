/** What interactive requests and lines make of a limit that each of them teaches. */
import { expect, test } from "vitest";
import { type Dispatcher, upstreamAt, World } from "../support/world.ts";

const LIMIT = 32;
const MINUTES = 5;

/** Does something while so many clients ask without end. */
async function whileAsked(
  dispatcher: Dispatcher,
  clientCount: number,
  work: () => Promise<unknown>,
): Promise<void> {
  const stop = new AbortController();
  const askOnAndOn = async () => {
    while (!stop.signal.aborted) expect(await dispatcher.ask("somebody")).toBe(200);
  };
  const asking = Array.from({ length: clientCount }, askOnAndOn);
  await work();
  stop.abort();
  await Promise.all(asking);
}

/** Sends `count` batches of `lineCount` lines, one every so often, while so many clients ask. */
async function sendWhileAsked(
  world: World,
  dispatcher: Dispatcher,
  {
    clientCount,
    count,
    lineCount,
    everyMs,
  }: Record<"clientCount" | "count" | "lineCount" | "everyMs", number>,
): Promise<void> {
  const batches: Promise<unknown>[] = [];
  await whileAsked(dispatcher, clientCount, async () => {
    for (let i = 0; i < count; i++) {
      batches.push(dispatcher.sendLines(lineCount));
      await world.sleep(everyMs);
    }
  });
  await Promise.all(batches);
}

test("interactive requests alone, which say nothing of tokens, do not make a target look slow", async () => {
  await using world = new World();
  const server = await world.server({ serviceMs: 2_000, jitter: 0.5, outputTokens: [128, 128] });
  const dispatcher = world.dispatcher(upstreamAt(server, { max_concurrency: LIMIT }));
  await world.run(async () => {
    await dispatcher.sendLines(1_000);
    await whileAsked(dispatcher, LIMIT, () => world.sleep(MINUTES * 60_000));
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
  const load = { clientCount: 600, count: 20, lineCount: LINES, everyMs: 40_000 };
  await world.run(() => sendWhileAsked(world, dispatcher, load));
  expect(server.stats().maxPresent).toBeLessThan(4 * SERVED);
});

test("a line now and then keeps no limit low that interactive requests use", async () => {
  await using world = new World();
  const server = await world.server({ capacity: 8 * SERVED, serviceMs: 2_000, jitter: 0.3 });
  const dispatcher = world.dispatcher(upstreamAt(server, { max_concurrency: 512 }));
  const load = { clientCount: 200, count: 40, lineCount: 1, everyMs: 3_000 };
  await world.run(() => sendWhileAsked(world, dispatcher, load));
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
