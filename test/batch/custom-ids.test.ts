import fc from "fast-check";
import { expect, test } from "vitest";
import { CustomIds, hashOf } from "../../src/batch/custom-ids.ts";
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

/** The processor time for some ids, at which the event loop stands still. */
const MAX_STEP_MS = 80;
const IDS_OF_STEP = 64;

test("a file of two million lines never waits for long to remember an id", { retry: 2 }, () => {
  const ids = new CustomIds();
  let longestMs = 0;
  for (let first = 0; first < 2_100_000; first += IDS_OF_STEP) {
    const before = process.threadCpuUsage();
    for (let i = first; i < first + IDS_OF_STEP; i++) add(ids, `"request-${i}"`);
    const { user, system } = process.threadCpuUsage(before);
    longestMs = Math.max(longestMs, (user + system) / 1000);
  }
  expect(longestMs).toBeLessThan(MAX_STEP_MS);
});

test("ids that collide under one seed do not collide under others that begin or end like it", () => {
  const seed = 0x2545f491;
  const hash = (id: string, under: number) => {
    const bytes = Buffer.from(id);
    return hashOf(bytes, { start: 0, end: bytes.length }, under);
  };
  // Characters whose bits differ in the low places only, as a client would choose them.
  const characters = "#$%&'()*+,-./0123456789:;<=>?";
  const idOf = (n: number) =>
    Array.from({ length: 5 }, (_, i) => characters[Math.floor(n / 29 ** i) % 29]).join("");
  const found = new Map<number, string>();
  const pairs: [string, string][] = [];
  for (let n = 0; pairs.length < 4; n += 7) {
    const id = idOf(n);
    const other = found.get(hash(id, seed));
    if (other !== undefined) pairs.push([other, id]);
    found.set(hash(id, seed), id);
  }
  for (const [one, other] of pairs) {
    const seeds = Array.from({ length: 32 }, (_, bit) => seed ^ (1 << bit));
    expect(seeds.filter((each) => hash(one, each) === hash(other, each))).toEqual([]);
  }
});
