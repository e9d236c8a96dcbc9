import fc from "fast-check";
import { expect, test } from "vitest";
import { Sums } from "../../src/batch/sums.ts";

test("each key has the sum of what was added to it, and the total is the sum of all", () => {
  const added = fc.array(fc.tuple(fc.constantFrom("a", "b", "c"), fc.integer({ min: -9, max: 9 })));
  fc.assert(
    fc.property(added, (amounts) => {
      const sums = new Sums<string>();
      for (const [key, amount] of amounts) sums.add(key, amount);
      const sumOf = (of: typeof amounts) => of.reduce((sum, [, amount]) => sum + amount, 0);
      for (const key of ["a", "b", "c"]) {
        expect(sums.of(key)).toBe(sumOf(amounts.filter(([name]) => name === key)));
      }
      expect(sums.total).toBe(sumOf(amounts));
    }),
  );
});
