import { PassThrough } from "node:stream";
import { expect, test } from "vitest";
import { NO_USAGE } from "../../src/batch/batch.ts";
import type { Outcome } from "../../src/batch/outcome.ts";
import { systemClock } from "../../src/clock.ts";
import { createLog } from "../../src/telemetry/log.ts";
import { TargetHealth } from "../../src/upstream/health.ts";

const body = Buffer.from('{"secret":"content"}');
const good: Outcome = {
  kind: "answered",
  status: 200,
  requestId: null,
  body,
  usage: NO_USAGE,
};
const overloaded = (retryAfterMs: number | null): Outcome => ({
  ...{ kind: "overloaded", status: 429, requestId: null, body, retryAfterMs },
});

function setUp() {
  let elapsedMs = 0;
  const lines = new PassThrough();
  const clock = { ...systemClock, elapsedMs: () => elapsedMs };
  const health = new TargetHealth("gpu", { clock, log: createLog("info", lines) });
  const logged = () => {
    const text = String(lines.read() ?? "");
    expect(text).not.toContain("content");
    return text
      .split("\n")
      .filter(Boolean)
      .map((line) => JSON.parse(line) as { event: string; count?: number });
  };
  return {
    health,
    events: () => logged().map(({ event, count }) => (count ? `${event} ${count}` : event)),
    pass: (ms: number) => {
      elapsedMs += ms;
    },
  };
}

test("trouble is logged once in ten seconds with a count, and its end once", () => {
  const { health, events, pass } = setUp();
  health.note(good);
  expect(events()).toEqual([]);
  for (let i = 0; i < 5; i++) health.note(overloaded(null));
  expect(events()).toEqual(["upstream.overloaded 1"]);
  pass(10_000);
  health.note(overloaded(null));
  expect(events()).toEqual(["upstream.overloaded 5"]);
  health.note(good);
  health.note(good);
  expect(events()).toEqual(["upstream.recovered"]);
  health.note(overloaded(null));
  health.note(good);
  expect(events()).toEqual([]);
});

test("each kind of trouble has its own line, and none has the content of an answer", () => {
  const { health, events } = setUp();
  health.note({ kind: "unreachable", detail: "connection refused" });
  health.note({ kind: "broken", detail: "status 200 with a body: content" });
  health.note(overloaded(5));
  health.note({ kind: "interrupted" });
  expect(events()).toEqual([
    "upstream.unreachable 1",
    "upstream.failed 1",
    "upstream.overloaded 1",
  ]);
});

test("a target rests longer each time that it is found down again", () => {
  const { health, pass } = setUp();
  for (const restMs of [500, 1_000, 2_000]) {
    for (let i = 0; i < 100; i++) health.note({ kind: "unreachable", detail: "" });
    pass(restMs - 1);
    expect(health.isResting).toBe(true);
    pass(1);
    expect(health.isResting).toBe(false);
  }
});
