import { expect, test } from "vitest";
import type { ModelUsage } from "../../src/batch/model-usage.ts";
import type { Price } from "../../src/batch/price.ts";
import type { Store } from "../../src/store/store.ts";
import type { ProjectUsage, UsageQuery } from "../../src/store/usage.ts";
import { aSegment, claimChunk, startBatch } from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const PRICE: Price = {
  currency: "USD",
  per: 1_000_000,
  input: "0.50",
  cachedInput: "0.25",
  output: "1",
  perRequest: "0",
};

const used = (fields: Partial<ModelUsage> = {}): ModelUsage => ({
  model: "llama",
  day: "2026-01-31",
  price: PRICE,
  requestCount: 1,
  inputTokens: 10,
  cachedTokens: 4,
  outputTokens: 3,
  ...fields,
});

const JANUARY: UsageQuery = { project: null, fromDay: "2026-01-01", toDay: "2026-01-31" };

async function listed(store: Store, query: UsageQuery): Promise<ProjectUsage[]> {
  const rows: ProjectUsage[] = [];
  let page = await store.listUsage(query, null);
  rows.push(...page.rows);
  while (page.next !== null) {
    page = await store.listUsage(query, page.next);
    rows.push(...page.rows);
  }
  return rows;
}

export function testUsage(open: OpenStore): void {
  test.each(["a\0", "a\ud800"])(
    "a project whose name is no text has used nothing: %j",
    async (project) => {
      const { store } = await open();
      const query = { project, fromDay: "2026-01-01", toDay: "2026-12-31" };
      expect(await store.listUsage(query, null)).toEqual({ rows: [], next: null });
    },
  );

  test("usage is summed up by model, day and price, in the commit of its segment", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store, ["llama"], { project: "a" });
    const { lease } = await claimChunk(store);
    const twice = aSegment({ modelUsage: [used()] });
    await store.recordSegmentIfLeased(lease, twice);
    await store.recordSegmentIfLeased(lease, twice);
    await store.recordSegmentIfLeased(
      lease,
      aSegment({ modelUsage: [used(), used({ day: "2026-02-01" })] }),
    );
    await store.closeChunkIfLeased(
      lease,
      aSegment({ modelUsage: [used({ model: "qwen", price: null })] }),
    );
    const late = aSegment({ modelUsage: [used()] });
    expect(await store.recordSegmentIfLeased(lease, late)).toBe(false);
    const both = { requestCount: 2, inputTokens: 20, cachedTokens: 8, outputTokens: 6 };
    expect(await listed(store, JANUARY)).toMatchObject([
      { project: "a", ...used(both) },
      { project: "a", ...used({ model: "qwen", price: null }) },
    ]);
    const three = { requestCount: 3, inputTokens: 30, cachedTokens: 12, outputTokens: 9 };
    expect(await store.findPricedUsage([batch.id])).toEqual([
      { batchId: batch.id, price: PRICE, ...three },
    ]);
  });

  test("usage of segments that cannot be read any more is taken back", async () => {
    const { store } = await open();
    const { batch } = await startBatch(store, ["llama"]);
    const { lease } = await claimChunk(store);
    const lost = [1, 2].map(() => aSegment({ modelUsage: [used(), used({ model: "qwen" })] }));
    for (const entry of [...lost, aSegment({ modelUsage: [used()] })]) {
      await store.recordSegmentIfLeased(lease, entry);
    }
    await store.removeSegmentsIfLeased(
      lease,
      lost.map(({ blobKey }) => blobKey),
    );
    const { requestCount, inputTokens, cachedTokens, outputTokens } = used();
    expect(await store.findPricedUsage([batch.id])).toEqual([
      { batchId: batch.id, price: PRICE, requestCount, inputTokens, cachedTokens, outputTokens },
    ]);
  });

  test("usage is listed by project and day, page by page, and each once", async () => {
    const { store } = await open();
    // What is stored later may be of an earlier day.
    for (const [project, day] of [
      ["a", "2026-01-31"],
      ["b", "2026-01-30"],
    ] as const) {
      await startBatch(store, ["llama"], { project });
      const { lease } = await claimChunk(store);
      const modelUsage = Array.from({ length: 5_100 }, (_, n) =>
        used({ model: `model ${n}`, day }),
      );
      await store.recordSegmentIfLeased(lease, aSegment({ modelUsage }));
    }
    const rows = await listed(store, { ...JANUARY, project: "a" });
    expect(rows.every(({ project }) => project === "a")).toBe(true);
    expect(new Set(rows.map(({ model }) => model)).size).toBe(5_100);
    expect(rows).toHaveLength(5_100);
    expect(await listed(store, JANUARY)).toHaveLength(10_200);
    expect(await listed(store, { ...JANUARY, toDay: "2026-01-30" })).toHaveLength(5_100);
    expect(await listed(store, { ...JANUARY, toDay: "2026-01-29" })).toEqual([]);
    expect(await listed(store, { ...JANUARY, fromDay: "2026-02-01", toDay: "2026-02-01" })).toEqual(
      [],
    );
  });
}
