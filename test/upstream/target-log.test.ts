import { PassThrough } from "node:stream";
import { expect, test } from "vitest";
import { NO_USAGE } from "../../src/batch/batch.ts";
import type { Outcome } from "../../src/batch/outcome.ts";
import { systemClock } from "../../src/clock.ts";
import { createLog } from "../../src/telemetry/log.ts";
import { TargetLog } from "../../src/upstream/target-log.ts";

const body = Buffer.from('{"secret":"content"}');
const good: Outcome = {
  kind: "answered",
  status: 200,
  requestId: null,
  body,
  usage: NO_USAGE,
};
const overloaded = (retryAfterMs: number | null): Outcome => ({
  kind: "overloaded",
  status: 429,
  requestId: null,
  body,
  retryAfterMs,
});

function setUp() {
  let elapsedMs = 0;
  const lines = new PassThrough();
  const clock = { ...systemClock, elapsedMs: () => elapsedMs };
  const log = new TargetLog("gpu", { clock, log: createLog("info", lines) });
  const logged = () => {
    const text = String(lines.read() ?? "");
    expect(text).not.toContain("content");
    return text
      .split("\n")
      .filter(Boolean)
      .map((line) => JSON.parse(line) as { event: string; count?: number });
  };
  return {
    log,
    events: () => logged().map(({ event, count }) => (count ? `${event} ${count}` : event)),
    pass: (ms: number) => {
      elapsedMs += ms;
    },
  };
}

test("a failure is logged once in ten seconds with a count, and its end once", () => {
  const { log, events, pass } = setUp();
  log.note(good);
  expect(events()).toEqual([]);
  for (let i = 0; i < 5; i++) log.note(overloaded(null));
  expect(events()).toEqual(["upstream.overloaded 1"]);
  pass(10_000);
  log.note(overloaded(null));
  expect(events()).toEqual(["upstream.overloaded 5"]);
  log.note(good);
  log.note(good);
  expect(events()).toEqual(["upstream.recovered"]);
  log.note(overloaded(null));
  log.note(good);
  expect(events()).toEqual([]);
});

test("each sort of failure has its own event, and none has the content of an answer", () => {
  const { log, events } = setUp();
  log.note({ kind: "unreachable", detail: "connection refused" });
  log.note({ kind: "broken", detail: "status 200 with a body: content" });
  log.note(overloaded(5));
  log.note({ kind: "interrupted" });
  expect(events()).toEqual([
    "upstream.unreachable 1",
    "upstream.failed 1",
    "upstream.overloaded 1",
  ]);
});
