import { expect, test } from "vitest";
import { EqualBodies } from "../../src/batch/equal-bodies.ts";

/** Looks for a body, whose bytes come to the digest in two steps. */
function find(bodies: EqualBodies, text: string, line: number): number | null {
  const body = Buffer.from(text);
  bodies.digesting.begin(body);
  while (!bodies.digesting.advance(Math.ceil(body.length / 2)));
  return bodies.firstWith(bodies.digesting.result(), line);
}

test("a full table compares with the bodies that it has, and says which lines these are", () => {
  const bodies = new EqualBodies(3);
  const texts = ["a", "b", "a", "c", "d", "d", "c"];
  expect(texts.map((text, i) => find(bodies, text, i + 1))).toEqual([
    null,
    null,
    1,
    null,
    null,
    null,
    4,
  ]);
  expect([1, 2, 4, 5, 6].map((line) => bodies.mayRepeat(line))).toEqual([
    true,
    true,
    true,
    false,
    false,
  ]);
});

test("a table that grows finds every body again", () => {
  const bodies = new EqualBodies();
  for (let n = 1; n <= 10_000; n++) {
    const found = find(bodies, `{"n":${n % 5_000}}`, n);
    expect(found).toBe(n <= 5_000 ? null : n - 5_000);
  }
});
