import { setImmediate as nextTurn } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import { UpstreamEntry } from "../../src/config/upstreams.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { answerChat, GOOD } from "../support/given.ts";
import { never, openRoute, requestOf } from "../support/targets.ts";
import { startUpstream } from "../support/upstream.ts";

const HOUR_MS = 3_600_000;

/** A route to one target; the clock stands still until it is moved. */
function open(url: string, clock: FakeClock, more: object = {}) {
  const config = UpstreamEntry.parse({ name: "a", base_url: url, models: ["m"], ...more });
  return openRoute([config], undefined, clock).route;
}

describe.each([
  ["back", -HOUR_MS],
  ["forward", HOUR_MS],
])("a date that is set %s by an hour", (_, setByMs) => {
  test("makes a pause that a target asks for neither longer nor shorter", async () => {
    await using upstream = await startUpstream({ answers: "by_hand" });
    const clock = new FakeClock();
    const route = open(upstream.url, clock, { requests_per_minute: 1 });
    const request = requestOf("hello", { deadlineAtMs: clock.nowMs() + 24 * HOUR_MS });
    const outcome = route.send(request, { stop: never, abort: never });
    const { response } = await upstream.next();
    response.writeHead(429, { "retry-after": "90" }).end("{}");
    await clock.asleep(1, clock.nowMs() + 90_000);

    clock.setBy(setByMs);
    expect(route.opensAtMs).toBe(clock.nowMs() + 90_000);
    clock.advance(89_999);
    expect(route.opensAtMs).toBe(clock.nowMs() + 1);
    clock.advance(1);
    expect(route.opensAtMs).toBeLessThanOrEqual(clock.nowMs());
    answerChat(await upstream.next());
    expect((await outcome).kind).toBe("answered");
  });

  test("moves no hold, and what was served before it is no evidence of what was served since", async () => {
    await using upstream = await startUpstream({ answers: () => GOOD });
    const clock = new FakeClock();
    const route = open(upstream.url, clock);
    const request = requestOf("hello", { deadlineAtMs: clock.nowMs() + 24 * HOUR_MS });
    const send = () => route.send(request, { stop: never, abort: never });
    expect((await send()).kind).toBe("answered");
    upstream.answers = () => ({ status: 401, body: {} });
    clock.setBy(setByMs);
    clock.advance(1);
    const held = send();
    while (route.held(request, never) === null) await nextTurn();

    clock.setBy(setByMs);
    expect(route.held(request, never)).not.toBeNull();
    upstream.answers = () => GOOD;
    clock.advance(500);
    expect((await held).kind).toBe("answered");
  });

  test("ends no attempt before its time, and none later", async () => {
    await using upstream = await startUpstream({ answers: "by_hand" });
    const clock = new FakeClock();
    const route = open(upstream.url, clock, { timeout_seconds: 60 });
    const request = requestOf("hello", { deadlineAtMs: clock.nowMs() + 24 * HOUR_MS });
    const proxied = route.proxy(request, never);
    await upstream.next();
    clock.setBy(setByMs);
    clock.advance(59_000);
    await clock.asleep(1, clock.nowMs() + 1_000);
    clock.advance(1_000);
    expect(await proxied).toMatchObject({ kind: "timed_out", afterMs: 60_000 });
  });
});
