import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { divideSlots, slotCountOf, wantedSlots } from "../../src/batch/slot-share.ts";

const sumOf = (parts: readonly number[]) => parts.reduce((sum, part) => sum + part, 0);

describe("slots that are divided", () => {
  test("are all given away, and no replica that wants more has less than another", () => {
    fc.assert(
      fc.property(
        fc.nat(1_000),
        fc.array(fc.integer({ min: 1, max: 1_000 }), { minLength: 1, maxLength: 20 }),
        fc.nat(100),
        (limit, wanted, turn) => {
          const parts = divideSlots(limit, wanted, turn);
          expect(sumOf(parts)).toBe(limit);
          const least = Math.min(...parts.filter((part, i) => part < (wanted[i] ?? 0)));
          for (const [i, part] of parts.entries()) {
            if (part <= (wanted[i] ?? 0)) expect(part).toBeLessThanOrEqual(least + 1);
            else expect(least).toBe(Number.POSITIVE_INFINITY);
          }
        },
      ),
    );
  });

  test("are asked for so that interactive requests go first and lines keep a quarter, wherever they are", () => {
    const lanes = fc.record({ interactive: fc.nat(100), batch: fc.nat(100) });
    fc.assert(
      fc.property(
        fc.integer({ min: 20, max: 200 }),
        fc.array(lanes, { minLength: 1, maxLength: 8 }),
        (limit, all) => {
          const replicas = all.map((each, i) => ({ owner: `replica-${i}`, lanes: each }));
          const wanted = replicas.map((own) => {
            const others = replicas.filter((each) => each !== own);
            return wantedSlots(own, others, { limit, batchShare: 0.25 });
          });
          const [interactive, batch] = [
            sumOf(all.map((each) => each.interactive)),
            sumOf(all.map((each) => each.batch)),
          ];
          if (interactive === 0 || batch === 0) return;
          // A replica that wants nothing asks for one slot all the same.
          expect(sumOf(wanted)).toBeLessThanOrEqual(limit + all.length);
          expect(sumOf(wanted)).toBeGreaterThanOrEqual(Math.min(limit, interactive + batch));
          const quarter = Math.min(batch, Math.round(limit / 4));
          const ofLines = sumOf(wanted.filter((_, i) => all[i]?.interactive === 0));
          if (all.every((each) => each.interactive === 0 || each.batch === 0)) {
            expect(ofLines).toBeGreaterThanOrEqual(quarter);
            expect(ofLines).toBeLessThanOrEqual(
              Math.max(quarter, limit - interactive) + all.length,
            );
          }
        },
      ),
    );
  });

  test("reach everyone in turn when there are fewer than replicas", () => {
    const sums = [0, 0, 0];
    for (let turn = 0; turn < 3; turn++) {
      for (const [i, part] of divideSlots(1, [1, 1, 1], turn).entries()) {
        sums[i] = (sums[i] ?? 0) + part;
      }
    }
    expect(sums).toEqual([1, 1, 1]);
  });

  test("are never more than a limit together, in whatever order replicas renew", () => {
    const renewal = fc.record({ who: fc.nat(4), wanted: fc.integer({ min: 1, max: 50 }) });
    fc.assert(
      fc.property(fc.nat(40), fc.array(renewal, { maxLength: 40 }), (limit, renewals) => {
        const sharers = new Map<string, { owner: string; wanted: number; held: number }>();
        for (const [turn, { who, wanted }] of renewals.entries()) {
          const owner = `replica-${who}`;
          sharers.set(owner, { owner, wanted, held: 0 });
          const all = [...sharers.values()].toSorted((a, b) => (a.owner < b.owner ? -1 : 1));
          const held = slotCountOf(owner, { limit, sharers: all, turn });
          sharers.set(owner, { owner, wanted, held });
          expect(sumOf([...sharers.values()].map((each) => each.held))).toBeLessThanOrEqual(limit);
        }
      }),
    );
  });
});
