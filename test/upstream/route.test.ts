import { describe, expect, onTestFinished, test } from "vitest";
import type { BatchId } from "../../src/batch/batch.ts";
import type { UpstreamConfig } from "../../src/config/upstreams.ts";
import type { Route, Slot } from "../../src/upstream/upstream.ts";
import { FakeClock } from "../support/fake-clock.ts";
import {
  modelServer,
  never,
  openRoute,
  requestOf,
  send,
  statusOf,
  targetAt,
} from "../support/targets.ts";
import { startUpstream } from "../support/upstream.ts";

describe("a line", () => {
  /** A slot that an attempt does not give back leaves none for the next one. */
  const ONE_SLOT = { max_concurrency: 1 };

  test.each([
    ["[[status 429 x7]]", 200, 8],
    ["[[retry-after-ms 20 status 503 x6]]", 200, 7],
    ["[[status 529 x5]] [[status 400]]", 400, 6],
    ["[[status 498 x7]]", 200, 8],
    ["[[status 500 x4]]", 200, 5],
    ["[[reset x2]] [[html 200 x2]] [[status 502 x4]]", 200, 9],
    ["[[status 500]]", 500, 5],
    ["[[status 501]]", 501, 1],
    ["[[status 409]]", 409, 5],
    ["[[status 424 x4]]", 200, 5],
    ["[[status 422]]", 422, 1],
  ])("that is told %s ends with %s after %i attempts", async (prompt, status, attempts) => {
    const upstream = await modelServer();
    const { route } = openRoute([targetAt(upstream, "a", ONE_SLOT)]);
    expect(statusOf(await send(route, prompt))).toBe(status);
    expect(upstream.received.get(prompt)).toBe(attempts);
  });

  test("waits at least as long as the upstream asks", async () => {
    const upstream = await modelServer();
    const { route } = openRoute([targetAt(upstream, "a")]);
    const startedAtMs = performance.now();
    await send(route, "[[retry-after-ms 80 status 429 x1]]");
    expect(performance.now() - startedAtMs).toBeGreaterThanOrEqual(79);
  });

  test.each([
    ["[[status 502]]", 502],
    ["[[status 504]]", 504],
    ["[[status 522]]", 522],
    ["[[status 530]]", 530],
    ["[[reset]]", "broken"],
    ["[[status 401]]", "refused"],
  ])("that is told %s ends while the server serves others, and not before", async (prompt, end) => {
    const upstream = await modelServer();
    const { route } = openRoute([targetAt(upstream, "a")], () => 0.02);
    let isOver = false;
    const failing = send(route, prompt).finally(() => {
      isOver = true;
    });
    await upstream.reached(7);
    expect(isOver).toBe(false);
    for (let i = 0; !isOver; i++) expect(statusOf(await send(route, `other ${i}`))).toBe(200);
    expect(statusOf(await failing)).toBe(end);
  });

  test("that is never answered in time ends after five tries, though no other line is served", async () => {
    const upstream = await modelServer();
    const { route } = openRoute(
      [targetAt(upstream, "a", { ...ONE_SLOT, timeout_seconds: 0.1 })],
      () => 0.02,
    );
    expect(statusOf(await send(route, "[[hang]]"))).toBe("timed_out");
    expect(upstream.total).toBe(5);
  });

  test("outlives a target that is down", async () => {
    const upstream = await modelServer();
    const { port } = upstream;
    const { route, logged } = openRoute([targetAt(upstream, "a", ONE_SLOT)], () => 0.02);
    await upstream.close();
    const sent = send(route, "patience");
    const events = () => logged().map(({ event }) => event);
    await expect.poll(events).toContain("upstream.unreachable");
    const again = await startUpstream({ port });
    onTestFinished(() => again.close());
    expect(statusOf(await sent)).toBe(200);
  });

  test("holds no slot while it waits for its next attempt", async () => {
    const upstream = await modelServer();
    const { route } = openRoute([targetAt(upstream, "a", { max_concurrency: 1 })], () => 0.99);
    const stop = new AbortController();
    const signals = { stop: stop.signal, abort: never };
    const waiting = route.send(requestOf("[[status 429]]"), signals);
    await upstream.reached(1);
    expect(statusOf(await send(route, "next"))).toBe(200);
    stop.abort();
    expect(await waiting).toEqual({ kind: "interrupted" });
  });
});

test("a line that asks for more tokens than there are, and is found wrong, holds up no other line", async () => {
  const upstream = await modelServer();
  const { route } = openRoute([targetAt(upstream, "a", { tokens_per_minute: 1_000 })]);
  const messages = [{ role: "user", content: "[[status 400]]" }];
  const body = Buffer.from(JSON.stringify({ model: "m", messages }));
  expect(statusOf(await send(route, "", { body, answerTokens: 128e6 }))).toBe(400);
  expect(statusOf(await send(route, "next"))).toBe(200);
});

describe("an end before an answer", () => {
  test("stop ends a wait for a slot and a wait for a retry, but not an attempt", async () => {
    const upstream = await modelServer();
    const { route } = openRoute([targetAt(upstream, "a", { max_concurrency: 1 })], () => 0.99);
    const stop = new AbortController();
    const signals = { stop: stop.signal, abort: never };
    const retrying = route.send(requestOf("[[status 429]]"), signals);
    await upstream.reached(1);
    upstream.hold();
    const attempting = route.send(requestOf("in flight"), signals);
    const waiting = route.send(requestOf("no slot"), signals);
    await upstream.reached(2);
    stop.abort();
    expect(await Promise.all([retrying, waiting])).toEqual([
      { kind: "interrupted" },
      { kind: "interrupted" },
    ]);
    upstream.release();
    expect(statusOf(await attempting)).toBe(200);
    expect(await route.send(requestOf("late"), signals)).toEqual({ kind: "interrupted" });
    expect(upstream.total).toBe(2);
  });

  test("stop ends the waits of all its lines, also of those that only a longer one keeps from going", async () => {
    const upstream = await modelServer();
    const clock = new FakeClock();
    const target = targetAt(upstream, "a", { tokens_per_minute: 1_000, timeout_seconds: 600 });
    const { route } = openRoute([target], undefined, clock);
    upstream.hold();
    const first = send(route, "first", { answerTokens: 880 });
    await upstream.reached(1);
    clock.advance(56_000);
    const stop = new AbortController();
    const waiting = [500, 20].map((answerTokens) =>
      route.send(requestOf("stopped", { answerTokens }), { stop: stop.signal, abort: never }),
    );
    stop.abort();
    expect(await Promise.all(waiting)).toEqual([{ kind: "interrupted" }, { kind: "interrupted" }]);
    const later = send(route, "later", { answerTokens: 500 });
    clock.advance(10_000);
    upstream.release();
    expect((await Promise.all([first, later])).map(statusOf)).toEqual([200, 200]);
    expect(upstream.total).toBe(2);
  });

  test("abort drops the attempt, and its slot is free again", async () => {
    const upstream = await modelServer();
    const { route } = openRoute([targetAt(upstream, "a", { max_concurrency: 1 })]);
    const [stop, abort] = [new AbortController(), new AbortController()];
    const sent = route.send(requestOf("[[hang]]"), { stop: stop.signal, abort: abort.signal });
    await upstream.reached(1);
    stop.abort();
    abort.abort();
    expect(await sent).toEqual({ kind: "interrupted" });
    expect(statusOf(await send(route, "next"))).toBe(200);
  });

  test("the deadline ends a wait that outlasts it, and no attempt starts after it", async () => {
    const upstream = await modelServer();
    const { route } = openRoute([targetAt(upstream, "a")]);
    const sent = await send(route, "[[retry-after 600 status 429]]", {
      deadlineAtMs: Date.now() + 60,
    });
    expect(sent).toEqual({ kind: "interrupted" });
    expect(await send(route, "late", { deadlineAtMs: Date.now() })).toEqual({
      kind: "interrupted",
    });
    expect(upstream.total).toBe(1);
  });

  test("the deadline may pass while a line waits for its slot", async () => {
    const upstream = await modelServer();
    const { route } = openRoute([targetAt(upstream, "a", { max_concurrency: 1 })]);
    const first = send(route, "[[delay 60]]");
    const second = send(route, "late", { deadlineAtMs: Date.now() + 30 });
    expect(statusOf(await first)).toBe(200);
    expect(await second).toEqual({ kind: "interrupted" });
    expect(upstream.total).toBe(1);
  });
});

describe("a slot for a line", () => {
  const aFlow = (route: Route, name: string) =>
    route.flows.join({
      batchId: name as BatchId,
      project: "default",
      priority: 0,
      deadlineAtMs: 0,
      createdAtMs: 0,
    });

  /** A machine that is busy would end the time to send in this turn of the loop, and the line would wait for the next. */
  const openWithTime = (target: UpstreamConfig) => openRoute([target], undefined, new FakeClock());

  test("is there at once as long as one is free, and comes to the next line when it is released", async () => {
    const upstream = await modelServer();
    const { route } = openWithTime(targetAt(upstream, "a", { max_concurrency: 2 }));
    const flow = aFlow(route, "batch");
    expect(route.slotCount).toBe(2);
    const [first, second] = [1, 2].map(() =>
      route.acquire(requestOf("line"), { flow, rank: 0, stop: never }),
    );
    expect([first, second].some((slot) => slot === null || slot instanceof Promise)).toBe(false);
    const third = route.acquire(requestOf("line"), { flow, rank: 0, stop: never });
    expect(third).toBeInstanceOf(Promise);
    (first as Slot).release();
    expect(await third).not.toBeNull();
  });

  test("is not given once stop aborts, also not to a line that waits", async () => {
    const upstream = await modelServer();
    const { route } = openWithTime(targetAt(upstream, "a", { max_concurrency: 1 }));
    const flow = aFlow(route, "batch");
    const held = route.acquire(requestOf("line"), { flow, rank: 0, stop: never }) as Slot;
    const stop = new AbortController();
    const waiting = route.acquire(requestOf("line"), { flow, rank: 0, stop: stop.signal });
    stop.abort();
    expect(await waiting).toBeNull();
    held.release();
    expect(route.acquire(requestOf("line"), { flow, rank: 0, stop: stop.signal })).toBeNull();
    expect(route.acquire(requestOf("line"), { flow, rank: 0, stop: never })).not.toBeInstanceOf(
      Promise,
    );
  });

  test("is given back by a line that is sent with it too late", async () => {
    const upstream = await modelServer();
    const { route } = openRoute([targetAt(upstream, "a", { max_concurrency: 1 })]);
    const flow = aFlow(route, "batch");
    const late = requestOf("late", { deadlineAtMs: Date.now() - 1 });
    const slot = route.acquire(late, { flow, rank: 0, stop: never }) as Slot;
    const outcome = await route.send(late, { stop: never, abort: never }, slot);
    expect(outcome).toEqual({ kind: "interrupted" });
    expect(statusOf(await send(route, "next"))).toBe(200);
    expect(upstream.total).toBe(1);
  });
});
