/** An input is read once, in order, and counts in the memory budget no longer than it must. */
import fc from "fast-check";
import { expect, test } from "vitest";
import { readLines, sampledLines } from "../../../src/engine/intake/input-lines.ts";
import { MemoryBudget } from "../../../src/resources/memory-budget.ts";
import type { Store } from "../../../src/store/store.ts";
import { openBlobFolder } from "../../support/blob-folder.ts";

async function inputBench(text: string) {
  const folder = await openBlobFolder();
  const memory = new MemoryBudget(() => 1e9);
  const stop = new AbortController();
  const read = {
    input: await folder.store(text),
    project: "default",
    maxLineBytes: 10_000_000,
    stop: stop.signal,
    deps: { blobs: folder.blobs, memory, store: {} as Store },
  };
  return { read, memory, stop, [Symbol.dispose]: () => folder[Symbol.dispose]() };
}

const inputOf = (count: number) => Array.from({ length: count }, (_, i) => `line ${i}\n`).join("");

test("a sample has so many lines, from the first to the last part of the file, and all lines when there are no more", async () => {
  const cases = fc.record({ total: fc.nat({ max: 60 }), count: fc.integer({ min: 1, max: 60 }) });
  const property = fc.asyncProperty(cases, async ({ total, count }) => {
    using bench = await inputBench(inputOf(total));
    const isSampled = await sampledLines({ sample: count, deduplicated: null }, bench.read);
    if (total <= count) {
      expect(isSampled).toBeNull();
      return;
    }
    const places = Array.from({ length: total }, (_, i) => i).filter((i) => isSampled?.(i));
    expect(places).toHaveLength(count);
    // One line lies in each of `count` parts of the file.
    places.forEach((place, i) => {
      expect(place).toBeGreaterThanOrEqual(Math.floor((i * total) / count));
      expect(place).toBeLessThan(Math.ceil(((i + 1) * total) / count));
    });
  });
  await fc.assert(property, { numRuns: 10 });
});

test("a batch without a sample reads nothing", async () => {
  using bench = await inputBench("");
  const { input } = bench.read;
  const gone = { ...bench.read, input: { ...input, blobKey: "files/gone" } };
  expect(await sampledLines({ sample: null, deduplicated: null }, gone)).toBeNull();
});

test("a long line counts as it comes, and none when it has been read", async () => {
  using bench = await inputBench(`${"x".repeat(3_000_000)}\nshort\n`);
  const { read, memory } = bench;
  const held: number[] = [];
  const lengths: (number | undefined)[] = [];
  const isWhole = await readLines(read, ({ bytes }) => {
    held.push(memory.heldBytes("lines"));
    lengths.push(bytes?.length);
    return null;
  });
  expect([isWhole, lengths]).toEqual([true, [3_000_000, 5]]);
  expect(held[0]).toBeGreaterThan(2_000_000);
  expect(memory.heldBytes("lines")).toBe(0);
});

test("a reading that is stopped ends between two pieces, and says that lines are left", async () => {
  using bench = await inputBench(inputOf(200_000));
  const { read, stop } = bench;
  let count = 0;
  const isWhole = await readLines(read, () => {
    if (++count === 1_000) stop.abort();
    return null;
  });
  expect(isWhole).toBe(false);
  expect(count).toBeGreaterThanOrEqual(1_000);
  expect(count).toBeLessThan(200_000);
});
