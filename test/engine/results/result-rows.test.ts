import fc from "fast-check";
import { expect, test } from "vitest";
import { inLineOrder } from "../../../src/engine/results/result-rows.ts";

async function* streamOf(numbers: readonly number[]) {
  for (const number of numbers) yield { number };
}

test("two streams are merged in the order of their lines, whatever they have", async () => {
  const lines = fc.array(fc.nat(50)).map((numbers) => numbers.toSorted((a, b) => a - b));
  await fc.assert(
    fc.asyncProperty(lines, lines, async (one, other) => {
      const merged: number[] = [];
      for await (const { number } of inLineOrder(streamOf(one), streamOf(other)))
        merged.push(number);
      const expected = [...one, ...other].toSorted((a, b) => a - b);
      expect(merged).toEqual(expected);
    }),
  );
});
