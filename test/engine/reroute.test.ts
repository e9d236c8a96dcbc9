/** A configuration that changes under a running batch: its lines go the new way, and none is lost or charged. */
import { expect, test } from "vitest";
import { openStorage } from "../../src/runtime/storage/storage.ts";
import type { Store } from "../../src/store/store.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { chatLine, startTestService } from "../support/service.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

const serving = (upstream: TestUpstream, models: readonly string[]) => ({
  name: models.join("-"),
  base_url: upstream.url,
  models,
  min_concurrency: 2,
  max_concurrency: 2,
});

/** Once it is over, another replica may have a chunk that was left. */
const LEASE_TTL_MS = 30_000;

const linesFor = (model: string, count: number) =>
  Array.from({ length: count }, (_, i) => chatLine(`${model}-${i}`, "fine", { model }));

test("what is in flight at a route that goes ends there, and the rest goes by the new one", async () => {
  await using before = await startUpstream();
  await using after = await startUpstream();
  await using service = await startTestService({
    config: { upstreams: [serving(before, ["m"])] },
  });
  before.hold();
  const { id } = await service.submit(linesFor("m", 30));
  await before.reached(2);

  service.reconfigure({ upstreams: [{ ...serving(after, ["m"]), name: "other" }] });
  before.release();
  const batch = await service.ended(id);

  expect(batch.request_counts).toEqual({ total: 30, completed: 30, failed: 0 });
  expect([before.total, after.total]).toEqual([2, 28]);
  expect([...after.received.keys()].filter((line) => before.received.has(line))).toEqual([]);
  expect(service.events.count("chunk.ended", { batch: id, ended: "reroute" })).toBe(1);
});

test("lines of a model that nothing serves any more wait until something does, and it is told once", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    config: { upstreams: [serving(upstream, ["m"])] },
  });
  upstream.hold();
  const { id } = await service.submit(linesFor("m", 10));
  await upstream.reached(2);

  service.reconfigure({ upstreams: [serving(upstream, ["other"])] });
  upstream.release();
  await service.events.reached("chunk.ended", { batch: id, ended: "reroute", unanswered: 8 });
  await service.events.reached("route.unserved", { model: "m" });
  // The other model's batch shows that the scheduler goes on, and looks again.
  await service.run(linesFor("other", 5));
  expect((await service.openai.batches.retrieve(id)).status).toBe("in_progress");
  service.reconfigure({
    upstreams: [serving(upstream, ["other"]), { ...serving(upstream, ["m"]) }],
  });
  const batch = await service.ended(id);

  expect(batch.request_counts).toEqual({ total: 10, completed: 10, failed: 0 });
  expect(service.events.count("route.unserved")).toBe(1);
  expect([...upstream.received.values()].every((count) => count === 1)).toBe(true);
});

const limits = { allow_mixed_models: true };

const mixedLines = Array.from({ length: 30 }, (_, i) => {
  const model = i % 2 === 0 ? "m" : "n";
  return chatLine(`${model}-${i}`, "fine", { model });
});

const named = (name: string, upstream: object) => ({ ...upstream, name });

/** The models of the lines that came. */
const modelsAt = (upstream: TestUpstream) => [...upstream.received.keys()].map((line) => line[0]);
const timesN = (count: number) => Array.from({ length: count }, () => "n");

test("of a batch with several models, those that get another upstream go there, and the others stay", async () => {
  await using one = await startUpstream();
  await using two = await startUpstream();
  await using service = await startTestService({
    config: { limits, upstreams: [named("one", serving(one, ["m", "n"]))] },
  });
  one.hold();
  const { id } = await service.submit(mixedLines);
  await one.reached(2);

  service.reconfigure({
    limits,
    upstreams: [named("one", serving(one, ["m"])), serving(two, ["n"])],
  });
  one.release();
  const batch = await service.ended(id);

  expect(batch.request_counts).toEqual({ total: 30, completed: 30, failed: 0 });
  // One of them was in flight already.
  expect(modelsAt(one).filter((model) => model === "n")).toEqual(timesN(1));
  expect(modelsAt(two)).toEqual(timesN(14));
});

test("of a batch with several models, those that nothing serves any more wait until something does", async () => {
  await using one = await startUpstream();
  await using two = await startUpstream();
  const clock = new FakeClock();
  await using service = await startTestService({
    clock,
    config: { limits, upstreams: [named("one", serving(one, ["m", "n"]))] },
  });
  one.hold();
  const { id } = await service.submit(mixedLines);
  await one.reached(2);

  service.reconfigure({ limits, upstreams: [named("one", serving(one, ["m"]))] });
  one.release();
  await service.events.reached("chunk.ended", { batch: id, ended: "done", unanswered: 14 });
  expect(modelsAt(one).filter((model) => model === "n")).toEqual(timesN(1));
  service.reconfigure({
    limits,
    upstreams: [named("one", serving(one, ["m"])), serving(two, ["n"])],
  });
  clock.advance(LEASE_TTL_MS);
  const batch = await service.ended(id);

  expect(batch.request_counts).toEqual({ total: 30, completed: 30, failed: 0 });
  expect(modelsAt(two)).toEqual(timesN(14));
});

test("a route that stays the same goes on without a break", async () => {
  await using upstream = await startUpstream();
  await using added = await startUpstream();
  const config = { upstreams: [serving(upstream, ["m"])] };
  await using service = await startTestService({ config });
  upstream.hold();
  const { id } = await service.submit(linesFor("m", 10));
  await upstream.reached(2);

  service.reconfigure({ upstreams: [...config.upstreams, serving(added, ["other"])] });
  upstream.release();
  await service.ended(id);

  expect(service.events.count("chunk.claimed", { batch: id })).toBe(1);
});

test("a chunk that is claimed just when its model moves is given back at once, not left to its lease", async () => {
  // Time stands still: a lease that is not given back never runs out.
  const clock = new FakeClock();
  await using before = await startUpstream();
  await using after = await startUpstream();
  const config = (upstream: TestUpstream, name: string) => ({
    upstreams: [{ ...serving(upstream, ["m"]), name }],
  });
  const moving: { now: (() => void) | null } = { now: null };
  await using service = await startTestService({
    clock,
    config: config(before, "before"),
    openStorage: async (places, closers) => {
      const opened = await openStorage(places, closers);
      if (!opened.ok) return opened;
      const { store } = opened;
      const claimChunks: Store["claimChunks"] = async (claim) => {
        const claimed = await store.claimChunks(claim);
        moving.now?.();
        moving.now = null;
        return claimed;
      };
      return { ...opened, store: { ...store, claimChunks } };
    },
  });
  moving.now = () => service.reconfigure(config(after, "after"));

  const batch = await service.run(linesFor("m", 3));

  expect(batch.request_counts).toEqual({ total: 3, completed: 3, failed: 0 });
  expect([before.total, after.total]).toEqual([0, 3]);
});
