/** A reader of some lines of a long batch misses none of them, and reads little else. */
import fc from "fast-check";
import { expect, test } from "vitest";
import type { ChunkJournal } from "../../src/store/finalizing.ts";
import { linesInWindows, startLines } from "../support/journals.ts";
import { aSegment, claimBy } from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const range = (from: number, to: number) =>
  Array.from({ length: Math.max(0, to - from + 1) }, (_, i) => from + i);

export function testJournals(open: OpenStore): void {
  test("chunks from a line on have every later line once and in order, whatever the models, the sample and the line are", async () => {
    const { store } = await open();
    const cases = fc.record({
      runs: fc.array(
        fc.record({
          model: fc.constantFrom("a", "a", "a", "b", "c", "d"),
          length: fc.integer({ min: 1, max: 12 }),
        }),
        { minLength: 1, maxLength: 20 },
      ),
      maxLines: fc.integer({ min: 1, max: 5 }),
      sampleEvery: fc.option(fc.integer({ min: 2, max: 20 })),
      afterLine: fc.integer({ min: 0, max: 100 }),
    });
    const holds = fc.asyncProperty(cases, async ({ runs, maxLines, sampleEvery, afterLine }) => {
      const models = runs.flatMap(({ model, length }) => Array.from({ length }, () => model));
      const isSampled = (i: number) => sampleEvery !== null && i % sampleEvery === 0;
      const batch = await startLines(store, models, { maxLines, isSampled });
      const query = { afterLine, part: "all" as const, store };
      const { lines } = await linesInWindows(batch, query);
      expect(lines).toEqual(range(afterLine + 1, models.length));
    });
    await fc.assert(holds, { numRuns: 40 });
  });

  test("chunks are few for a place in the middle of 20,000, also of a model that ended long before", async () => {
    const { store } = await open();
    const count = 20_000;
    const models = range(1, count).map((n) => (n <= 100 ? "rare" : n % 2 === 0 ? "a" : "b"));
    const batch = await startLines(store, models, { maxLines: 1, isSampled: (i) => i < 3 });
    const half = { afterLine: count / 2, untilLine: count / 2 + 2, store };
    const { lines, chunkCount } = await linesInWindows(batch, { ...half, part: "all" as const });
    expect(lines.slice(0, 2)).toEqual([count / 2 + 1, count / 2 + 2]);
    expect(chunkCount).toBeLessThan(20);
  });

  test("chunks that nothing is written of are left out, where a reader wants records", async () => {
    const { store } = await open();
    const models = range(1, 200).map(() => "a");
    const batch = await startLines(store, models, { maxLines: 1 });
    const wanted = [{ batchId: batch.id, model: "a", count: 200 }];
    const claimed = await store.claimChunks({ ...claimBy("worker"), wanted });
    const written = [3, 40, 41, 42, 43, 44, 45, 190];
    for (const { lease, chunk } of claimed) {
      if (!written.includes(chunk.number + 1)) continue;
      await store.recordSegmentIfLeased(lease, aSegment({ completed: 1 }));
    }
    const query = { afterLine: 2, part: "completed" as const, store };
    const { lines, chunkCount } = await linesInWindows(batch, query);
    expect(lines).toEqual(written);
    expect(chunkCount).toBe(written.length);
  });

  test("segments are left out that have no records of the wanted kind, and so are chunks without any other", async () => {
    const { store } = await open();
    const models = range(1, 300).map(() => "a");
    const batch = await startLines(store, models, { maxLines: 10 });
    const wanted = [{ batchId: batch.id, model: "a", count: 30 }];
    for (const { lease, chunk } of await store.claimChunks({ ...claimBy("worker"), wanted })) {
      const record = (completed: number, failed: number) =>
        store.recordSegmentIfLeased(lease, aSegment({ completed, failed }));
      await (chunk.number === 20 ? record(0, 2) : record(2, 0));
      if (chunk.number % 10 === 3) await record(1, 1);
    }
    const segmentsOf = async (part: "completed" | "failed") => {
      const page = await store.listJournalPage(batch.id, { after: -1, limit: 100, part });
      const begun = await store.findJournalStart(batch, { line: 135, part });
      const counted = (journals: readonly ChunkJournal[]) =>
        journals.map(({ chunk, segments }) => [chunk.number, segments.length]);
      return { page: counted(page), begun: counted(begun.journals) };
    };
    expect(await segmentsOf("failed")).toEqual({
      page: [
        [3, 1],
        [13, 1],
        [20, 1],
        [23, 1],
      ],
      begun: [[13, 1]],
    });
    const completed = await segmentsOf("completed");
    expect(completed.page).toHaveLength(29);
    expect(completed.page.slice(12, 14)).toEqual([
      [12, 1],
      [13, 2],
    ]);
    expect(completed.begun).toEqual([[13, 2]]);
  });
}
