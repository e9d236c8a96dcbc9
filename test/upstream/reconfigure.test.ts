import { expect, test } from "vitest";
import { modelServer, never, openTargets, requestOf, targetAt } from "../support/targets.ts";

const signals = { stop: never, abort: never };

test("a limit that is raised lets waiting lines go, on the route that they wait for", async () => {
  const upstream = await modelServer();
  const { upstreams } = openTargets([targetAt(upstream, "a", { max_concurrency: 1 })]);
  const route = upstreams.findRoute("m")!;
  upstream.hold();
  const sent = ["one", "two", "three"].map((prompt) => route.send(requestOf(prompt), signals));
  await upstream.reached(1);
  upstreams.reconfigure([targetAt(upstream, "a", { min_concurrency: 3, max_concurrency: 3 })]);
  await upstream.reached(3);
  expect(upstreams.findRoute("m")).toBe(route);
  expect(route.slotCount).toBe(3);
  upstream.release();
  expect((await Promise.all(sent)).map(({ kind }) => kind)).toEqual(Array(3).fill("answered"));
});

test("what is in flight at a target that goes ends there, and what waits for it is given back", async () => {
  const [gone, next] = [await modelServer(), await modelServer()];
  const { upstreams } = openTargets([targetAt(gone, "gone", { max_concurrency: 1 })]);
  const route = upstreams.findRoute("m")!;
  gone.hold();
  const inFlight = route.send(requestOf("in flight"), signals);
  const waiting = route.send(requestOf("waiting"), signals);
  await gone.reached(1);
  upstreams.reconfigure([targetAt(next, "next")]);
  expect((await waiting).kind).toBe("interrupted");
  expect(upstreams.findRoute("m")).not.toBe(route);
  gone.release();
  expect((await inFlight).kind).toBe("answered");
  expect((await upstreams.findRoute("m")!.send(requestOf("waiting"), signals)).kind).toBe(
    "answered",
  );
  expect([gone.total, next.total]).toEqual([1, 1]);
});

test("a target that moves takes its next requests at the new address", async () => {
  const [before, after] = [await modelServer(), await modelServer()];
  const { upstreams } = openTargets([targetAt(before, "a")]);
  const route = upstreams.findRoute("m")!;
  before.hold();
  const inFlight = route.send(requestOf("one"), signals);
  await before.reached(1);
  upstreams.reconfigure([targetAt(after, "a", { api_key: "new" })]);
  expect((await route.send(requestOf("two"), signals)).kind).toBe("answered");
  before.release();
  expect((await inFlight).kind).toBe("answered");
  expect(after.seen.map(({ headers }) => headers.authorization)).toEqual(["Bearer new"]);
});

test("a long request that is being made when its target moves has the key of the new address", async () => {
  const [before, after] = [await modelServer(), await modelServer()];
  // Another name in the body is another body, and a long one is made in slices.
  const models = [{ name: "m", upstream_model: "meta/m" }];
  const { upstreams } = openTargets([targetAt(before, "a", { models, api_key: "old" })]);
  const route = upstreams.findRoute("m")!;
  const long = { ...JSON.parse(requestOf("one").body.toString()), padding: "x".repeat(16 << 20) };
  const sent = route.send(requestOf("one", { body: Buffer.from(JSON.stringify(long)) }), signals);
  for (let turn = 0; turn < 2; turn++) await new Promise((resolve) => setImmediate(resolve));
  upstreams.reconfigure([targetAt(after, "a", { models, api_key: "new" })]);
  expect((await sent).kind).toBe("answered");
  expect(before.total).toBe(0);
  expect(after.seen.map(({ headers }) => headers.authorization)).toEqual(["Bearer new"]);
});

test("a line of a model that is listed no more goes out under the name that it had", async () => {
  const upstream = await modelServer();
  const models = [{ name: "m", upstream_model: "meta/m" }, "other"];
  const { upstreams } = openTargets([targetAt(upstream, "a", { models })]);
  const route = upstreams.findRoute("m")!;
  upstreams.reconfigure([targetAt(upstream, "a", { models: ["other"] })]);
  expect(upstreams.findRoute("m")).toBeNull();
  await route.send(requestOf("straggler"), signals);
  expect(JSON.parse(upstream.seen[0]!.body)).toMatchObject({ model: "meta/m" });
});

test("the same configuration again changes nothing", async () => {
  const upstream = await modelServer();
  const { upstreams } = openTargets([targetAt(upstream, "a")]);
  const route = upstreams.findRoute("m")!;
  await route.send(requestOf("one"), signals);
  // A connection is free again one turn after its answer.
  await new Promise((resolve) => setImmediate(resolve));
  upstreams.reconfigure([targetAt(upstream, "a")]);
  await route.send(requestOf("two"), signals);
  expect(upstreams.findRoute("m")).toBe(route);
  expect(upstream.connectionCount).toBe(1);
});

test("a quota that is raised lets waiting lines go", async () => {
  const upstream = await modelServer();
  const { upstreams } = openTargets([targetAt(upstream, "a", { requests_per_minute: 1 })]);
  const route = upstreams.findRoute("m")!;
  await route.send(requestOf("one"), signals);
  const waiting = route.send(requestOf("two"), signals);
  upstreams.reconfigure([targetAt(upstream, "a", { requests_per_minute: 10_000 })]);
  expect((await waiting).kind).toBe("answered");
});

test.each([
  ["a new key", { api_key: "new" }],
  ["a reload without a change", {}],
])(
  "%s ends the pause that a target has asked for, also for the line that was put off",
  async (_, changes) => {
    const upstream = await modelServer();
    const { upstreams } = openTargets([targetAt(upstream, "a")]);
    const route = upstreams.findRoute("m")!;
    const first = route.send(requestOf("[[status 429 retry-after 43200 x1]]"), signals);
    await upstream.reached(1);
    await expect.poll(() => route.opensAtMs - Date.now()).toBeGreaterThan(40_000_000);
    const second = route.send(requestOf("two"), signals);
    upstreams.reconfigure([targetAt(upstream, "a", changes)]);
    expect((await Promise.all([first, second])).map(({ kind }) => kind)).toEqual([
      "answered",
      "answered",
    ]);
  },
);

test("a reload lets a target that has asked for a pause have as many lines as at the start", async () => {
  const upstream = await modelServer();
  const { upstreams } = openTargets([targetAt(upstream, "a", { max_concurrency: 64 })]);
  const route = upstreams.findRoute("m")!;
  const target = () => upstreams.listTargets()[0]!;
  const before = target().limit;
  upstream.hold();
  const sent = Array.from({ length: before }, (_, n) =>
    route.send(requestOf(`${n} [[status 429 retry-after 43200 x1]]`), signals),
  );
  await upstream.reached(before);
  upstream.release();
  await expect.poll(() => target().inFlight.batch).toBe(0);
  expect(target().limit).toBeLessThan(before);
  upstreams.reconfigure([targetAt(upstream, "a", { max_concurrency: 64 })]);
  expect(target().limit).toBe(before);
  for (const outcome of await Promise.all(sent)) expect(outcome.kind).toBe("answered");
});
