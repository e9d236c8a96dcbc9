import { expect, test } from "vitest";
import { EqualBodies } from "../../src/batch/equal-bodies.ts";

const bodyOf = (text: string) => {
  const bytes = Buffer.from(text);
  return [bytes, { start: 0, end: bytes.length }] as const;
};

test("a full table compares with the bodies that it has, and says which lines these are", () => {
  const bodies = new EqualBodies(3);
  const firstWith = (text: string, line: number) => bodies.firstWith(...bodyOf(text), line);
  expect(["a", "b", "a", "c", "d", "d", "c"].map((text, i) => firstWith(text, i + 1))).toEqual([
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

test("a table that grows finds every body again, and only the part of the line that is the body counts", () => {
  const bodies = new EqualBodies();
  const line = (n: number) => Buffer.from(`${String(n).padStart(6)}{"n":${n % 5_000}}`);
  for (let n = 1; n <= 10_000; n++) {
    const bytes = line(n);
    const found = bodies.firstWith(bytes, { start: 6, end: bytes.length }, n);
    expect(found).toBe(n <= 5_000 ? null : n - 5_000);
  }
});
