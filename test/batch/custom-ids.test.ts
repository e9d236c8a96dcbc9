import fc from "fast-check";
import { expect, test } from "vitest";
import { CustomIds } from "../../src/batch/custom-ids.ts";
import { stringText } from "../support/json-arbitraries.ts";

const add = (ids: CustomIds, spelling: string) => {
  const bytes = Buffer.from(`xx${spelling}yy`);
  return ids.addIfNew(bytes, { start: 2, end: bytes.length - 2 });
};

test("an id is new exactly when no id before it has the same text", () => {
  const spelling = fc.oneof(
    stringText,
    fc.constantFrom(
      '"a"',
      '"\\u0061"',
      '""',
      '"\\ud800"',
      '"\\udfff"',
      '"\ufffd"',
      '"\\/"',
      '"/"',
      '"\\\\"',
    ),
  );
  fc.assert(
    fc.property(fc.array(spelling, { maxLength: 40 }), (spellings) => {
      const ids = new CustomIds();
      const texts = new Set<string>();
      for (const each of spellings) {
        const text = JSON.parse(each) as string;
        expect(add(ids, each), each).toBe(!texts.has(text));
        texts.add(text);
      }
    }),
    { numRuns: 500 },
  );
});

test("tens of thousands of ids, long ones among them, are all found again", () => {
  const ids = new CustomIds();
  const idOf = (i: number) => `"${i % 100 === 0 ? "long".repeat(500) : "request-"}${i}"`;
  const numbers = Array.from({ length: 20_000 }, (_, i) => i);
  expect(numbers.filter((i) => !add(ids, idOf(i)))).toEqual([]);
  expect(numbers.filter((i) => add(ids, idOf(i)))).toEqual([]);
});
