import fc from "fast-check";
import { expect, test } from "vitest";
import { ReadAhead } from "../../../src/engine/results/read-ahead.ts";

interface Thing {
  readonly number: number;
  readonly bytes: number;
}

const things = fc
  .array(fc.nat({ max: 60 }), { maxLength: 30 })
  .map((sizes) => sizes.map((bytes, number): Thing => ({ number, bytes })));
const limits = fc.record({ maxCount: fc.nat({ max: 5 }), maxBytes: fc.nat({ max: 100 }) });

test("whatever is taken when, each thing is read once, and the results that wait stay within the limits", async () => {
  const property = fc.asyncProperty(
    things.chain((all) =>
      fc.record({
        all: fc.constant(all),
        order: fc.shuffledSubarray(all, { minLength: all.length }),
      }),
    ),
    limits,
    async ({ all, order }, bounds) => {
      const started: Thing[] = [];
      const taken = new Set<Thing>();
      const ahead = new ReadAhead(all, {
        limits: bounds,
        bytesOf: ({ bytes }) => bytes,
        read: async (thing: Thing) => {
          started.push(thing);
          return thing.number;
        },
      });
      for (const thing of order) {
        taken.add(thing);
        expect(await ahead.take(thing)).toBe(thing.number);
        const waiting = started.filter((each) => !taken.has(each));
        expect(waiting.length).toBeLessThanOrEqual(bounds.maxCount);
        const waitingBytes = waiting.reduce((sum, { bytes }) => sum + bytes, 0);
        expect(waitingBytes).toBeLessThanOrEqual(bounds.maxBytes);
      }
      expect(started.map(({ number }) => number).sort((a, b) => a - b)).toEqual(
        all.map(({ number }) => number),
      );
    },
  );
  await fc.assert(property, { numRuns: 200 });
});

test("the next things are read before they are taken, in their order", () => {
  const started: number[] = [];
  const ahead = new ReadAhead([1, 2, 3, 4, 5, 6], {
    limits: { maxCount: 3, maxBytes: 100 },
    bytesOf: () => 10,
    read: async (thing) => started.push(thing),
  });
  void ahead.take(1);
  expect(started).toEqual([1, 2, 3, 4]);
});

test("a failure surfaces where its thing is taken, and nowhere if it is not taken", async () => {
  const ahead = new ReadAhead([1, 2, 3], {
    limits: { maxCount: 2, maxBytes: 100 },
    bytesOf: () => 1,
    read: async (thing) => {
      if (thing > 1) throw new Error(`no ${thing}`);
      return thing;
    },
  });
  expect(await ahead.take(1)).toBe(1);
  await expect(ahead.take(2)).rejects.toThrow("no 2");
});
