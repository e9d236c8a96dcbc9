import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import type { Batch, BatchId } from "../../../src/batch/batch.ts";
import { CommonFailures } from "../../../src/engine/common-failures.ts";
import { Forecaster } from "../../../src/engine/dispatch/forecaster.ts";
import { ThroughputEstimator } from "../../../src/engine/dispatch/throughput-estimator.ts";
import { openSqliteStore } from "../../../src/store/sqlite/store.ts";
import type { Upstreams } from "../../../src/upstream/upstream.ts";
import { Events } from "../../support/events.ts";
import { FakeClock } from "../../support/fake-clock.ts";
import {
  claimChunk,
  claimToFinalize,
  finalizingBatch,
  finishBatch,
  insertBatch,
  NO_RESULT,
  NOW_MS,
  PROJECT,
  startBatch,
} from "../../support/store-builders.ts";

const NOTHING_ELSE = { waiting: null, commonFailure: null };

async function aForecaster() {
  const dir = await mkdtemp(join(tmpdir(), "batchd-forecast-"));
  const clock = new FakeClock(NOW_MS);
  const opened = await openSqliteStore({ path: join(dir, "batchd.sqlite"), clock });
  if (!opened.ok) throw new Error(opened.problem);
  const { store } = opened;
  const route = {
    key: "llama",
    opensAtMs: 0,
    unavailabilityFor: () => null,
    endOfWork: (startAtMs: number, workMs: number) => startAtMs + workMs,
  };
  const commonFailures = new CommonFailures(new Events().log);
  const commonFailureOf = (batchId: BatchId) => commonFailures.find(batchId);
  const noticing = { failingJournals: new Set(), commonFailureOf };
  const upstreams = { findRoute: () => route } as unknown as Upstreams;
  // Two lines a second.
  const meter = new ThroughputEstimator();
  meter.begin(0);
  for (let i = 0; i < 20; i++) meter.count();
  meter.sample(10_000, "full");
  const measure = () => new Map([["llama", meter]]);
  return {
    store,
    forecaster: new Forecaster({ store, upstreams, clock, measure, ...noticing }),
    find: async ({ id }: Batch) => (await store.findBatch({ project: PROJECT, id })) as Batch,
    async [Symbol.asyncDispose]() {
      await store.close();
      await rm(dir, { recursive: true, force: true });
    },
  };
}

test("a batch is forecast from its creation until it is final", async () => {
  await using opened = await aForecaster();
  const { store, forecaster, find } = opened;
  const done = await finalizingBatch(store);
  const sending = await startBatch(store, ["llama"]);
  const waiting = await startBatch(store, ["llama", "llama"]);
  await claimChunk(store);
  const { batch: validating } = await insertBatch(store);
  expect(forecaster.forecastFor(sending.batch)).toBeNull();

  await forecaster.refresh();

  const forecasts = [sending.batch, waiting.batch, validating].map((batch) =>
    forecaster.forecastFor(batch),
  );
  expect(forecasts).toEqual([
    { etaAtMs: NOW_MS + 10_000, isAtRisk: false, queuePosition: 0, ...NOTHING_ELSE },
    {
      etaAtMs: NOW_MS + 15_000,
      isAtRisk: false,
      queuePosition: 1,
      commonFailure: null,
      waiting: { reason: "no_room", sinceMs: NOW_MS, upstreamError: null },
    },
    { etaAtMs: null, isAtRisk: false, queuePosition: 2, ...NOTHING_ELSE },
  ]);
  await finishBatch(store, await claimToFinalize(store), NO_RESULT);
  expect(forecaster.forecastFor(await find(done.batch))).toBeNull();
});

test("a batch that ends is not forecast any more, even before the next look", async () => {
  await using opened = await aForecaster();
  const { store, forecaster, find } = opened;
  const { batch } = await startBatch(store, ["llama"]);
  await forecaster.refresh();
  expect(forecaster.forecastFor(batch)).not.toBeNull();

  await store.cancelBatchIfOpen({ project: PROJECT, id: batch.id });
  await finishBatch(store, await claimToFinalize(store), NO_RESULT);

  expect(forecaster.forecastFor(await find(batch))).toBeNull();
});

test("what is at risk is known by its id", async () => {
  await using opened = await aForecaster();
  const { store, forecaster } = opened;
  const late = await startBatch(store, ["llama"], { expiresAtMs: NOW_MS + 8_000 });
  const safe = await startBatch(store, ["llama"]);
  await forecaster.refresh();
  expect([late, safe].map(({ batch }) => forecaster.isAtRisk(batch.id))).toEqual([true, false]);
});
