import { PassThrough } from "node:stream";
import { expect, test } from "vitest";
import { stop } from "../../src/cli/stop.ts";
import { createLog } from "../../src/telemetry/log.ts";
import { FAILED, OK } from "../../src/terminal/output.ts";
import { FakeClock } from "../support/fake-clock.ts";

const silent = createLog("silent", new PassThrough());

test("a server that cannot close, as its database is silent, ends within 8 s after the grace of requests", async () => {
  const clock = new FakeClock();
  const logged = new PassThrough();
  const log = createLog("warn", logged);
  const runtime = { closeGraceMs: 20_000, close: () => new Promise<void>(() => {}) };
  const exit = stop(runtime, { clock, log });
  await clock.asleep(1, clock.nowMs() + 28_000);
  clock.advance(28_000);
  expect(await exit).toBe(FAILED);
  expect(String(logged.read())).toContain("server.cut_off");
});

test("a server that closes in time ends well", async () => {
  const runtime = { closeGraceMs: 0, close: async () => {} };
  const exit = stop(runtime, { clock: new FakeClock(), log: silent });
  expect(await exit).toBe(OK);
});
