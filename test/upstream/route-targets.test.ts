import { describe, expect, onTestFinished, test } from "vitest";
import { UpstreamEntry, WEEKDAYS, type Weekday } from "../../src/config/upstreams.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { answerChat, answerWith } from "../support/given.ts";
import {
  modelServer,
  openRoute,
  openTargets,
  send,
  statusOf,
  targetAt,
} from "../support/targets.ts";
import { type Exchange, startUpstream, type TestUpstream } from "../support/upstream.ts";

describe("two targets of one route", () => {
  test("share the lines by load", async () => {
    const [a, b] = [await modelServer(), await modelServer()];
    const { route } = openRoute([
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
    const { route } = openRoute([targetAt(a, "a"), targetAt(b, "b")]);
    expect(statusOf(await send(route, "[[status 500]]"))).toBe(500);
    expect([a.total, b.total]).toEqual([3, 2]);
  });

  test("make a line wait for the busy one rather than go back to the one that failed", async () => {
    const [a, b] = [await modelServer(), await modelServer()];
    const { route } = openRoute([
      targetAt(a, "a", { max_concurrency: 1 }),
      targetAt(b, "b", { max_concurrency: 1 }),
    ]);
    a.hold();
    b.hold();
    const failing = send(route, "[[status 500]]");
    const [first, second] = await Promise.race([
      a.reached(1).then(() => [a, b] as const),
      b.reached(1).then(() => [b, a] as const),
    ]);
    const busy = send(route, "busy");
    await second.reached(1);
    first.release();
    await first.idle();
    expect(statusOf(await send(route, "the first is free"))).toBe(200);
    second.release();
    await second.reached(2);
    expect([...first.received.keys()]).toEqual(["[[status 500]]", "the first is free"]);
    expect([...second.received.keys()]).toEqual(["busy", "[[status 500]]"]);
    expect((await Promise.all([failing, busy])).map(statusOf)).toEqual([500, 200]);
  });

  test("spare one that asks to be left alone: lines go to the other at once", async () => {
    await using full = await startUpstream({
      answers: () => ({ status: 503, headers: { "retry-after": "60" } }),
    });
    const other = await modelServer();
    const { route } = openRoute([targetAt(full, "a-full"), targetAt(other, "b")]);
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

  test("have as many requests in flight as each allows, and no more", async () => {
    const [a, b] = [await modelServer(), await modelServer()];
    const { route } = openRoute([
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
    const { route } = openRoute([targetAt(shut, "a-closed", { schedule }), targetAt(sound, "b")]);
    for (const prompt of ["[[status 500 x1]]", "[[status 429 x1]]", "[[reset x1]]"]) {
      expect(statusOf(await send(route, prompt))).toBe(200);
    }
    expect([shut.total, sound.total]).toEqual([0, 6]);
  });
});
