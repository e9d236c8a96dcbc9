import { describe, expect, onTestFinished, test } from "vitest";
import type { BatchId } from "../../src/batch/batch.ts";
import type { Outcome } from "../../src/batch/outcome.ts";
import type { Clock } from "../../src/clock.ts";
import {
  type UpstreamConfig,
  UpstreamEntry,
  WEEKDAYS,
  type Weekday,
} from "../../src/config/upstreams.ts";
import type { Route, Slot, UpstreamRequest } from "../../src/upstream/upstream.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { answerChat, answerWith } from "../support/given.ts";
import { modelServer, never, openTargets, requestOf, targetAt } from "../support/targets.ts";
import { type Exchange, startUpstream, type TestUpstream } from "../support/upstream.ts";

function open(targets: UpstreamConfig[], random?: () => number, clock?: Clock) {
  const { upstreams, logged } = openTargets(targets, random, clock);
  return { route: upstreams.findRoute("m")!, logged };
}

const send = (route: Route, prompt: string, changes: Partial<UpstreamRequest> = {}) =>
  route.send(requestOf(prompt, changes), { stop: never, abort: never });

const statusOf = (outcome: Outcome) =>
  "status" in outcome && outcome.kind !== "refused" ? outcome.status : outcome.kind;

describe("a line", () => {
  test.each([
    ["[[status 429 x7]]", 200, 8],
    ["[[retry-after-ms 20 status 503 x6]]", 200, 7],
    ["[[status 529 x5]] [[status 400]]", 400, 6],
    ["[[status 500 x4]]", 200, 5],
    ["[[reset x2]] [[html 200 x2]] [[status 502 x4]]", 200, 9],
    ["[[status 500]]", 500, 5],
    ["[[status 501]]", 501, 1],
    ["[[status 409]]", 409, 1],
  ])("that is told %s ends with %s after %i attempts", async (prompt, status, attempts) => {
    const upstream = await modelServer();
    const { route } = open([targetAt(upstream, "a")]);
    expect(statusOf(await send(route, prompt))).toBe(status);
    expect(upstream.received.get(prompt)).toBe(attempts);
  });

  test("waits at least as long as the upstream asks", async () => {
    const upstream = await modelServer();
    const { route } = open([targetAt(upstream, "a")]);
    const startedAtMs = performance.now();
    await send(route, "[[retry-after-ms 80 status 429 x1]]");
    expect(performance.now() - startedAtMs).toBeGreaterThanOrEqual(79);
  });

  test.each([
    ["[[status 502]]", 502],
    ["[[status 504]]", 504],
    ["[[reset]]", "broken"],
    ["[[status 401]]", "refused"],
  ])("that is told %s ends while the server serves others, and not before", async (prompt, end) => {
    const upstream = await modelServer();
    const { route } = open([targetAt(upstream, "a")], () => 0.02);
    let isOver = false;
    const failing = send(route, prompt).finally(() => {
      isOver = true;
    });
    await upstream.reached(7);
    expect(isOver).toBe(false);
    for (let i = 0; !isOver; i++) expect(statusOf(await send(route, `other ${i}`))).toBe(200);
    expect(statusOf(await failing)).toBe(end);
  });

  test("that is never answered in time ends after five tries, though nobody else is served", async () => {
    const upstream = await modelServer();
    const { route } = open([targetAt(upstream, "a", { timeout_seconds: 0.1 })], () => 0.02);
    expect(statusOf(await send(route, "[[hang]]"))).toBe("timed_out");
    expect(upstream.total).toBe(5);
  });

  test("outlives a target that is down", async () => {
    const upstream = await modelServer();
    const { port } = upstream;
    const { route } = open([targetAt(upstream, "a")], () => 0.02);
    await upstream.close();
    const sent = send(route, "patience");
    const again = await startUpstream({ port });
    onTestFinished(() => again.close());
    expect(statusOf(await sent)).toBe(200);
  });

  test("goes out under the name that the target knows the model by", async () => {
    const upstream = await modelServer();
    const models = [{ name: "m", upstream_model: "meta/llama" }];
    const { route } = open([targetAt(upstream, "a", { models })]);
    await send(route, "hello");
    expect(JSON.parse(upstream.seen[0]!.body)).toMatchObject({ model: "meta/llama" });
  });

  test("holds no slot while it waits for its next attempt", async () => {
    const upstream = await modelServer();
    const { route } = open([targetAt(upstream, "a", { max_concurrency: 1 })], () => 0.99);
    const stop = new AbortController();
    const signals = { stop: stop.signal, abort: never };
    const waiting = route.send(requestOf("[[status 429]]"), signals);
    await upstream.reached(1);
    expect(statusOf(await send(route, "next"))).toBe(200);
    stop.abort();
    expect(await waiting).toEqual({ kind: "interrupted" });
  });
});

describe("two targets of one route", () => {
  test("share the lines by load", async () => {
    const [a, b] = [await modelServer(), await modelServer()];
    const { route } = open([
      targetAt(a, "a", { max_concurrency: 3 }),
      targetAt(b, "b", { max_concurrency: 3 }),
    ]);
    a.hold();
    b.hold();
    const sent = Array.from({ length: 6 }, (_, i) => send(route, `line ${i}`));
    await Promise.all([a.reached(3), b.reached(3)]);
    a.release();
    b.release();
    expect((await Promise.all(sent)).map(statusOf)).toEqual([200, 200, 200, 200, 200, 200]);
  });

  test("give a line that failed at one to the other, in turn", async () => {
    const [a, b] = [await modelServer(), await modelServer()];
    const { route } = open([targetAt(a, "a"), targetAt(b, "b")]);
    expect(statusOf(await send(route, "[[status 500]]"))).toBe(500);
    expect([a.total, b.total]).toEqual([3, 2]);
  });

  test("make a line wait for the busy one rather than go back to the one that failed", async () => {
    const [a, b] = [await modelServer(), await modelServer()];
    const { route } = open([
      targetAt(a, "a", { max_concurrency: 1 }),
      targetAt(b, "b", { max_concurrency: 1 }),
    ]);
    a.hold();
    b.hold();
    const failing = send(route, "[[status 500]]");
    const busy = send(route, "busy");
    await Promise.all([a.reached(1), b.reached(1)]);
    a.release();
    await a.idle();
    expect(statusOf(await send(route, "a is free"))).toBe(200);
    b.release();
    await b.reached(2);
    expect([...a.received.keys()]).toEqual(["[[status 500]]", "a is free"]);
    expect([...b.received.keys()]).toEqual(["busy", "[[status 500]]"]);
    expect((await Promise.all([failing, busy])).map(statusOf)).toEqual([500, 200]);
  });

  test("spare one that asks to be left alone: lines go to the other at once", async () => {
    await using full = await startUpstream({
      answers: () => ({ status: 503, headers: { "retry-after": "60" } }),
    });
    const other = await modelServer();
    const { route } = open([targetAt(full, "a-full"), targetAt(other, "b")]);
    expect(statusOf(await send(route, "finds out"))).toBe(200);
    for (let i = 0; i < 20; i++) expect(statusOf(await send(route, `line ${i}`))).toBe(200);
    expect([full.total, other.total]).toEqual([1, 21]);
  });

  test("spare one that refuses the key: requests of that kind go to the other at once", async () => {
    await using refusing = await startUpstream({ answers: () => ({ status: 401, body: {} }) });
    const other = await modelServer();
    const clock = new FakeClock();
    const targets = [targetAt(refusing, "a-refusing"), targetAt(other, "b")];
    const route = openTargets(targets, () => 0, clock).upstreams.findRoute("m")!;
    const deadlineAtMs = clock.nowMs() + 3_600_000;
    for (let i = 0; i < 21; i++) {
      expect(statusOf(await send(route, `line ${i}`, { deadlineAtMs }))).toBe(200);
    }
    expect([refusing.total, other.total]).toEqual([1, 21]);
  });

  test("outlive the loss of one", async () => {
    const [dead, alive] = [await modelServer(), await modelServer()];
    const { route, logged } = open([targetAt(dead, "a-dead"), targetAt(alive, "b")]);
    await dead.close();
    expect(statusOf(await send(route, "the one that finds out"))).toBe(200);
    for (let i = 0; i < 20; i++) expect(statusOf(await send(route, `line ${i}`))).toBe(200);
    expect(logged().filter(({ event }) => event === "upstream.unreachable")).toEqual([
      expect.objectContaining({ target: "a-dead", count: 1, detail: "connection refused" }),
    ]);
  });

  test("have as many requests in flight as each allows, and no more", async () => {
    const [a, b] = [await modelServer(), await modelServer()];
    const { route } = open([
      targetAt(a, "a", { max_concurrency: 4 }),
      targetAt(b, "b", { max_concurrency: 2 }),
    ]);
    const prompts = Array.from(
      { length: 200 },
      (_, i) => `[[delay 2]] [[status 500 x${i % 3}]] line ${i}`,
    );
    const outcomes = await Promise.all(prompts.map((prompt) => send(route, prompt)));
    expect(new Set(outcomes.map(statusOf))).toEqual(new Set([200]));
    expect([a.maxInFlight, b.maxInFlight]).toEqual([4, 2]);
  });
});

describe("a target that asks to be left alone for an hour", () => {
  const shut = ({ response }: Exchange) =>
    response.writeHead(503, { "retry-after": "3600" }).end("{}");

  async function openBoth() {
    const [main, spare] = [
      await startUpstream({ answers: "by_hand" }),
      await startUpstream({ answers: "by_hand" }),
    ];
    onTestFinished(async () => {
      for (const upstream of [main, spare]) await upstream[Symbol.asyncDispose]();
    });
    const at = ({ url }: TestUpstream, changes: object) =>
      UpstreamEntry.parse({ base_url: url, models: ["m"], max_concurrency: 1, ...changes });
    const { upstreams } = openTargets([
      at(main, { name: "main" }),
      at(spare, { name: "spare", priority: 1 }),
    ]);
    const waitingCount = () => upstreams.listTargets()[0]?.waiting;
    return { main, spare, route: upstreams.findRoute("m")!, waitingCount };
  }

  test("keeps no line that another one has refused for a moment", async () => {
    const { main, spare, route } = await openBoth();
    const first = send(route, "finds out");
    shut(await main.next());
    answerChat(await spare.next());
    await first;
    const refused = send(route, "refused");
    answerWith(await spare.next(), {}, 429);
    answerChat(await spare.next());
    expect(statusOf(await refused)).toBe(200);
  });

  test("keeps no line that waits for it alone: it goes back where it failed", async () => {
    const { main, spare, route, waitingCount } = await openBoth();
    const busy = send(route, "busy");
    const there = await main.next();
    const failed = send(route, "failed");
    answerWith(await spare.next(), {}, 500);
    await expect.poll(waitingCount).toBe(1);
    shut(there);
    answerChat(await spare.next());
    answerChat(await spare.next());
    expect([await busy, await failed].map(statusOf)).toEqual([200, 200]);
    expect([main.total, spare.total]).toEqual([1, 3]);
  });
});

describe("a target outside its hours", () => {
  const inThreeDays = WEEKDAYS[(new Date().getUTCDay() + 2) % 7] as Weekday;
  const closed = { days: [inThreeDays], from: "00:00", to: "24:00" };
  const schedule = { time_zone: "UTC", windows: [closed], concurrency_outside: 0 };

  test("keeps no line that another one has failed", async () => {
    const [shut, sound] = [await modelServer(), await modelServer()];
    const { route } = open([targetAt(shut, "a-closed", { schedule }), targetAt(sound, "b")]);
    for (const prompt of ["[[status 500 x1]]", "[[status 429 x1]]", "[[reset x1]]"]) {
      expect(statusOf(await send(route, prompt))).toBe(200);
    }
    expect([shut.total, sound.total]).toEqual([0, 6]);
  });
});

test("a line that asks for more tokens than there are, and is found wrong, holds up nobody", async () => {
  const upstream = await modelServer();
  const { route } = open([targetAt(upstream, "a", { tokens_per_minute: 1_000 })]);
  const messages = [{ role: "user", content: "[[status 400]]" }];
  const body = Buffer.from(JSON.stringify({ model: "m", messages }));
  expect(statusOf(await send(route, "", { body, answerTokens: 128e6 }))).toBe(400);
  expect(statusOf(await send(route, "next"))).toBe(200);
});

describe("an end before an answer", () => {
  test("stop ends a wait for a slot and a wait for a retry, but not an attempt", async () => {
    const upstream = await modelServer();
    const { route } = open([targetAt(upstream, "a", { max_concurrency: 1 })], () => 0.99);
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

  test("abort drops the attempt, and its slot is free again", async () => {
    const upstream = await modelServer();
    const { route } = open([targetAt(upstream, "a", { max_concurrency: 1 })]);
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
    const { route } = open([targetAt(upstream, "a")]);
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
    const { route } = open([targetAt(upstream, "a", { max_concurrency: 1 })]);
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
      ...{ batchId: name as BatchId, project: "default", priority: 0 },
      ...{ deadlineAtMs: 0, createdAtMs: 0 },
    });

  /** A machine that is busy would end the time to send in this turn of the loop, and the line would wait for the next. */
  const openWithTime = (target: UpstreamConfig) => open([target], undefined, new FakeClock());

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
    const { route } = open([targetAt(upstream, "a", { max_concurrency: 1 })]);
    const flow = aFlow(route, "batch");
    const late = requestOf("late", { deadlineAtMs: Date.now() - 1 });
    const slot = route.acquire(late, { flow, rank: 0, stop: never }) as Slot;
    const outcome = await route.send(late, { stop: never, abort: never }, slot);
    expect(outcome).toEqual({ kind: "interrupted" });
    expect(statusOf(await send(route, "next"))).toBe(200);
    expect(upstream.total).toBe(1);
  });
});
