/** The chunks that one statement claims: those of several batches and routes, and no more than there is room for. */
import { expect, test } from "vitest";
import { chooseChunks } from "../../../src/engine/dispatch/chunk-choice.ts";
import { RouteQueue } from "../../../src/engine/dispatch/route-queue.ts";
import type { RunnableChunks } from "../../../src/store/chunks.ts";
import type { Route } from "../../../src/upstream/upstream.ts";
import { FakeClock } from "../../support/fake-clock.ts";
import { aRoute, someWork, standing } from "../../support/runnable-work.ts";

const clock = new FakeClock();

async function queueOf(work: readonly RunnableChunks[], route: Partial<Route> = {}) {
  const queue = new RouteQueue(aRoute(route));
  await queue.update(work, standing);
  return queue;
}

const batches = (count: number, fields: Partial<RunnableChunks> = {}) =>
  Array.from({ length: count }, () => someWork(fields));

/** Returns the batches that are chosen, once for each of their chunks. */
const chosenOf = (queues: readonly RouteQueue[], isMemoryFull = false) =>
  [...chooseChunks(queues, { clock, isMemoryFull: () => isMemoryFull }).values()].flatMap(
    ({ runnable, reservations }) => reservations.map(() => runnable),
  );

test("what is chosen counts at once: each of the batches has one chunk, and another choice finds nothing", async () => {
  const work = batches(3);
  const queue = await queueOf(work);
  expect(chosenOf([queue])).toEqual(work);
  expect(chosenOf([queue])).toEqual([]);
});

test("a claim that has come to nothing leaves its chunk to the next choice", async () => {
  const queue = await queueOf(batches(1));
  const [choice] = chooseChunks([queue], { clock, isMemoryFull: () => false }).values();
  for (const end of choice?.reservations ?? []) end();
  expect(chosenOf([queue])).toHaveLength(1);
});

test("a statement claims 16 small chunks, or 2,048 lines of large ones", async () => {
  expect(chosenOf([await queueOf(batches(16)), await queueOf(batches(16))])).toHaveLength(4);
  const small = () => queueOf(batches(16, { remainingLineCount: 2 }));
  expect(chosenOf([await small(), await small()])).toHaveLength(16);
});

test("while slots are free, a statement asks for no more chunks of a batch than have lines", async () => {
  const small = batches(16, { remainingLineCount: 2 });
  expect(chosenOf([await queueOf(small, { slotCount: 256 })])).toEqual(small);
  const large = batches(1, { nextLineCount: 500, remainingLineCount: 1_500 });
  expect(chosenOf([await queueOf(large, { slotCount: 4_096 })])).toHaveLength(3);
});

test("a route that is closed now gives a chunk to each project that has none, while lines may be to blame", async () => {
  const open = [...batches(1, { project: "a" }), ...batches(1, { project: "b" })];
  const queue = await queueOf(open, { opensAtMs: clock.nowMs() + 1, isInDoubt: true });
  queue.chunkOpened("a");
  expect(chosenOf([queue])).toEqual(open.slice(1));
});

test("a route that is closed now is passed over", async () => {
  const open = batches(1);
  const queues = [
    await queueOf(batches(1), { opensAtMs: clock.nowMs() + 1 }),
    await queueOf(open, { opensAtMs: clock.nowMs() }),
  ];
  expect(chosenOf(queues)).toEqual(open);
});

test("a full memory is given one chunk at a time, at the route with the fewest", async () => {
  const work = batches(2);
  const [busy, idle] = [await queueOf(batches(2)), await queueOf(work)];
  busy.chunkOpened("two");
  expect(chosenOf([busy, idle], true)).toEqual([work[0]]);
});
