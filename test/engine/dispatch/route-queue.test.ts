import { describe, expect, test } from "vitest";
import type { BatchId } from "../../../src/batch/batch.ts";
import { RouteQueue } from "../../../src/engine/dispatch/route-queue.ts";
import type { RunnableChunks } from "../../../src/store/chunks.ts";
import type { UpstreamRequest } from "../../../src/upstream/request.ts";
import { aRoute, CHUNK_LINES, someWork, standing } from "../../support/runnable-work.ts";
import { seededRandom } from "../../support/seeded-random.ts";

const NEVER = new AbortController().signal;

const LINE = {} as UpstreamRequest;

/** A chunk claimed and handing out. */
function claim(queue: RouteQueue) {
  const runnable = queue.next("free");
  if (runnable === null) return null;
  const options = {
    chunk: { number: 0, lineCount: runnable.nextLineCount },
    stop: NEVER,
    onRoom: () => {},
  };
  return { runnable, handOut: queue.startHandOut(runnable, options) };
}

/** Claims as many as may hand out at once, in the order in which they are claimed. */
function claimAll(queue: RouteQueue) {
  const claimed = [];
  for (let next = claim(queue); next !== null; next = claim(queue)) claimed.push(next);
  return claimed;
}

describe("the next chunk of a route", () => {
  test("goes to each of the batches before any has a second one", async () => {
    const queue = new RouteQueue(aRoute());
    const work = Array.from({ length: 100 }, () => someWork());
    await queue.update(work, standing);
    const order: BatchId[] = [];
    for (let i = 0; i < work.length; i++) {
      const { runnable, handOut } = claim(queue)!;
      order.push(runnable.batchId);
      for (let line = 0; line < runnable.nextLineCount; line++) void handOut.acquire(LINE);
      handOut.end();
    }
    expect(new Set(order).size).toBe(100);
  });

  test("is handed out by one chunk of a batch at a time, and by a bounded number of batches", async () => {
    const queue = new RouteQueue(aRoute());
    const work = Array.from({ length: 100 }, () => someWork());
    await queue.update(work, standing);
    const claimed = claimAll(queue);
    expect(new Set(claimed.map(({ runnable }) => runnable.batchId)).size).toBe(claimed.length);
    expect(claimed).toHaveLength(16);
    void claimed[0]?.handOut.acquire(LINE);
    claimed[0]?.handOut.end();
    expect(claim(queue)?.runnable).toBe(work[16]);
  });

  test("is not kept from a small batch, or from another project, by large ones that fill all places", async () => {
    const queue = new RouteQueue(aRoute());
    const large = Array.from({ length: 100 }, () => someWork());
    await queue.update(large, standing);
    claimAll(queue);
    const small = someWork({ remainingLineCount: 10 });
    const other = someWork({ project: "two" });
    await queue.update([...large, small, other], standing);
    const next = claimAll(queue).map(({ runnable }) => runnable);
    expect(new Set(next)).toEqual(new Set([small, other]));
  });

  test("goes to a project that has none although the memory is full, and to no other one", async () => {
    const queue = new RouteQueue(aRoute());
    const [first, second, other] = [someWork(), someWork(), someWork({ project: "two" })];
    await queue.update([first, second, other], standing);
    queue.chunkOpened(claim(queue)!.runnable.project);
    expect(queue.next("full")).toBe(other);
    queue.chunkOpened("two");
    expect(queue.next("full")).toBeNull();
    queue.chunkEnded("one");
    expect(queue.next("full")).toBe(second);
  });

  test("goes to batches in danger first, the earliest deadline before the others, in three turns of four", async () => {
    const queue = new RouteQueue(aRoute());
    const safe = Array.from({ length: 5 }, () => someWork());
    const inDanger = Array.from({ length: 5 }, () => someWork());
    const ids = new Set(inDanger.map(({ batchId }) => batchId));
    await queue.update([...safe, ...inDanger.toReversed()], {
      ...standing,
      isAtRisk: (id) => ids.has(id),
    });
    const order = claimAll(queue).map(({ runnable }) => runnable);
    expect(order.slice(0, 6)).toEqual([...inDanger.slice(0, 3), safe[0], ...inDanger.slice(3)]);
  });

  test("is for another batch while a claim for the first one is under way", async () => {
    const queue = new RouteQueue(aRoute());
    const [first, second] = [someWork(), someWork()];
    await queue.update([first, second], standing);
    const end = queue.reserve(first);
    expect(queue.next("free")).toBe(second);
    queue.reserve(second);
    expect(queue.next("free")).toBeNull();
    end();
    expect(queue.next("free")).toBe(first);
  });

  test("is for no batch once the list shows that there is none, or a claim found none", async () => {
    const queue = new RouteQueue(aRoute());
    const [first, second] = [someWork(), someWork()];
    await queue.update([first, second], standing);
    queue.forget(first.batchId);
    expect(queue.next("free")).toBe(second);
    await queue.update([], standing);
    expect(queue.next("free")).toBeNull();
    expect(queue.isIdle).toBe(true);
  });

  test("comes to every large batch although small ones never cease to arrive", async () => {
    const random = seededRandom(7);
    const queue = new RouteQueue(aRoute());
    let work: RunnableChunks[] = Array.from({ length: 40 }, () => someWork());
    const large = new Set(work.map(({ batchId }) => batchId));
    const served = new Set<BatchId>();
    // One chunk at a time, so that the large ones have no place of their own.
    for (let claims = 0; claims < 10_000 && served.size < large.size; claims++) {
      while (work.length < large.size + 2) {
        work.push(someWork({ remainingLineCount: 1 + Math.floor(random() * 20) }));
      }
      await queue.update(work, standing);
      const { runnable, handOut } = claim(queue)!;
      for (let line = 0; line < runnable.nextLineCount; line++) void handOut.acquire(LINE);
      handOut.end();
      if (large.has(runnable.batchId)) served.add(runnable.batchId);
      else work = work.filter((each) => each !== runnable);
    }
    expect(served.size).toBe(large.size);
  });
});

describe("the next chunk of the same batch", () => {
  test("is claimed once its lines at hand are fewer than the slots", async () => {
    const queue = new RouteQueue(aRoute({ slotCount: 64 }));
    const work = someWork();
    await queue.update([work], standing);
    let roomCount = 0;
    queue.next("free");
    const options = {
      chunk: { number: 0, lineCount: CHUNK_LINES },
      stop: NEVER,
      onRoom: () => roomCount++,
    };
    const handOut = queue.startHandOut(work, options);
    for (let line = 0; line < CHUNK_LINES - 64; line++) handOut.lineTaken();
    expect([queue.next("free"), roomCount]).toEqual([null, 0]);
    handOut.lineTaken();
    expect([queue.next("free"), roomCount]).toEqual([work, 1]);
    queue.startHandOut(work, { ...options, chunk: { number: 1, lineCount: 1 } });
    expect(queue.next("free")).toBeNull();
  });

  test("is claimed when the former one ends, however many of its lines were left", async () => {
    const queue = new RouteQueue(aRoute({ slotCount: 64 }));
    const work = someWork();
    await queue.update([work], standing);
    const { handOut } = claim(queue)!;
    handOut.lineTaken();
    expect(queue.next("free")).toBeNull();
    handOut.end();
    expect(queue.next("free")).toBe(work);
  });
});
