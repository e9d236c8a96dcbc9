import { expect, test } from "vitest";
import { newBatchId, newFileId } from "../../src/batch/batch.ts";

const many = Array.from({ length: 2_000 });

test("a file id is file- and 22 letters or digits, each time another", () => {
  const ids = many.map(newFileId);
  expect(ids.filter((id) => !/^file-[0-9A-Za-z]{22}$/.test(id))).toEqual([]);
  expect(new Set(ids).size).toBe(ids.length);
});

test("a file id uses all letters and digits about as often", () => {
  const counts = new Map<string, number>();
  for (const letter of many.map(newFileId).join("").replaceAll("file-", "")) {
    counts.set(letter, (counts.get(letter) ?? 0) + 1);
  }
  const expected = (2_000 * 22) / 62;
  expect(counts.size).toBe(62);
  // Seven standard deviations: a fair draw is outside once in thousands of millions of runs.
  const margin = 7 * Math.sqrt(expected);
  expect([...counts].filter(([, count]) => Math.abs(count - expected) > margin)).toEqual([]);
});

test("a batch id is batch_, its creation time and 24 random digits", () => {
  const id = newBatchId(1_741_967_568_999);
  expect(id).toMatch(/^batch_67d450d0[0-9a-f]{24}$/);
  expect(newBatchId(1_741_967_568_999)).not.toBe(id);
});
