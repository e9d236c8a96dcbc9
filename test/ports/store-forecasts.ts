import { expect, test } from "vitest";
import type { BatchId } from "../../src/batch/batch.ts";
import type { BatchForecast } from "../../src/store/forecasts.ts";
import { NOW_MS } from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const idOf = (name: string) => `batch_${name}` as BatchId;

const aForecast = (name: string, fields: Partial<BatchForecast> = {}): BatchForecast => ({
  batchId: idOf(name),
  etaAtMs: NOW_MS,
  isAtRisk: false,
  queuePosition: 3,
  waiting: null,
  commonFailure: null,
  ...fields,
});

const FULL = aForecast("full", {
  isAtRisk: true,
  waiting: { reason: "upstream_down", sinceMs: NOW_MS - 1, upstreamError: "status 502" },
  commonFailure: { lineCount: 50, statusCode: 400, code: "too_long", message: "Grüße ☃" },
});
const EMPTY = aForecast("empty", { etaAtMs: null, queuePosition: null });

export function testForecasts(open: OpenStore): void {
  test("the forecasts of several batches come back as they are, and those of others do not", async () => {
    const { store } = await open();
    await store.recordForecasts([FULL, EMPTY, aForecast("other")], []);
    const found = await store.findForecasts([FULL.batchId, EMPTY.batchId, idOf("unknown")]);
    expect(found).toHaveLength(2);
    expect(found).toEqual(expect.arrayContaining([FULL, EMPTY]));
    expect(await store.findForecasts([])).toEqual([]);
    expect(await store.listForecasts()).toHaveLength(3);
  });

  test("a new forecast replaces the former one, and a batch that has ended has none", async () => {
    const { store } = await open();
    await store.recordForecasts([FULL, aForecast("ended", { isAtRisk: true })], []);
    const changed = { ...EMPTY, batchId: FULL.batchId };
    await store.recordForecasts([changed], [idOf("ended"), idOf("unknown")]);
    expect(await store.listForecasts()).toEqual([changed]);
    expect(await store.listBatchesAtRisk()).toEqual([]);
  });

  test("the batches at risk are listed by their ids", async () => {
    const { store } = await open();
    await store.recordForecasts([FULL, EMPTY], []);
    expect(await store.listBatchesAtRisk()).toEqual([FULL.batchId]);
  });

  test("a page of forecasts is recorded at once", async () => {
    const { store } = await open();
    const all = Array.from({ length: 500 }, (_, i) => aForecast(String(i)));
    await store.recordForecasts(all, []);
    await store.recordForecasts(
      all.map((each) => ({ ...each, isAtRisk: true })),
      all.slice(0, 100).map(({ batchId }) => batchId),
    );
    expect(await store.listBatchesAtRisk()).toHaveLength(400);
  });
}
