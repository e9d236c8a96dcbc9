import { PassThrough } from "node:stream";
import { expect, test } from "vitest";
import { Loops } from "../../../src/engine/steps/loops.ts";
import { createLog } from "../../../src/telemetry/log.ts";
import { FakeClock } from "../../support/fake-clock.ts";

const log = createLog("silent", new PassThrough());
const newLoops = () => new Loops<"one" | "other">({ clock: new FakeClock(), log });

test("a nudge wakes the loops that it names, and no other", async () => {
  const loops = newLoops();
  const passes = { one: 0, other: 0 };
  for (const name of ["one", "other"] as const) {
    loops.run(name, 1_000, async () => {
      passes[name]++;
      return false;
    });
  }
  await expect.poll(() => passes).toEqual({ one: 1, other: 1 });
  loops.nudge("one");
  await expect.poll(() => passes.one).toBe(2);
  expect(passes.other).toBe(1);
  loops.drain();
  await loops.settled();
});

test("a pass that fails runs again within a minute, also in a loop that runs once an hour", async () => {
  const clock = new FakeClock();
  const loops = new Loops<"one">({ clock, log });
  let passes = 0;
  loops.run("one", 3_600_000, async () => {
    if (++passes === 1) throw new Error("the bucket is away");
    return false;
  });
  await clock.asleep(1, clock.nowMs());
  clock.advance(60_000);
  await expect.poll(() => passes).toBe(2);
  loops.drain();
  await loops.settled();
});

test("a drain starts no pass any more, and what was claimed is waited for", async () => {
  const loops = newLoops();
  const work = Promise.withResolvers<void>();
  const claims = [{ project: "search", run: () => work.promise }];
  loops.runSideBySide("one", 1_000, async () => claims.shift() ?? null);
  await expect.poll(() => claims.length).toBe(0);
  loops.drain();
  loops.nudge("one");
  let hasSettled = false;
  const settled = loops.settled().then(() => {
    hasSettled = true;
  });
  await new Promise((resolve) => setImmediate(resolve));
  expect(hasSettled).toBe(false);
  work.resolve();
  await settled;
  expect(loops.isDraining).toBe(true);
});
