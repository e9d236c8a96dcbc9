import fc from "fast-check";
import { expect, test } from "vitest";
import { retryAtMs } from "../../src/webhooks/webhooks.ts";

const HOUR_MS = 3_600_000;
const waitMs = (attemptCount: number, random: number) =>
  retryAtMs({ attemptCount, createdAtMs: 0 }, 0, random);

test("waits double from five seconds to an hour", () => {
  const waits = Array.from({ length: 12 }, (_, before) => waitMs(before, 0));
  expect(waits.map((wait) => wait! / 1000)).toEqual([
    5, 10, 20, 40, 80, 160, 320, 640, 1_280, 2_560, 3_600, 3_600,
  ]);
});

test("chance shortens a wait by a fifth at most and never lengthens it", () => {
  fc.assert(
    fc.property(
      fc.nat(2_000),
      fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }),
      (before, random) => {
        const [drawn, longest] = [waitMs(before, random)!, waitMs(before, 0)!];
        expect(drawn).toBeLessThanOrEqual(longest);
        expect(drawn).toBeGreaterThanOrEqual(longest * 0.8);
      },
    ),
  );
});

test("there is no retry later than 72 hours after the event", () => {
  const delivery = { attemptCount: 50, createdAtMs: 1_000 };
  const lastAtMs = delivery.createdAtMs + 72 * HOUR_MS;
  expect(retryAtMs(delivery, lastAtMs - HOUR_MS, 0)).toBe(lastAtMs);
  expect(retryAtMs(delivery, lastAtMs - HOUR_MS + 1, 0)).toBeNull();
});
