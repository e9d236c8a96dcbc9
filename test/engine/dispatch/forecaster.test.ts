import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import type { Batch, BatchId } from "../../../src/batch/batch.ts";
import { CommonFailures } from "../../../src/engine/chunks/common-failures.ts";
import { Forecaster } from "../../../src/engine/dispatch/forecaster.ts";
import { ThroughputEstimator } from "../../../src/engine/dispatch/throughput-estimator.ts";
import { openSqliteStore } from "../../../src/store/sqlite/store.ts";
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
    opensInMs: 0,
    isBusy: true,
    canWrite: true,
    unavailabilityFor: () => null,
    endOfWork: (startAtMs: number, workMs: number) => startAtMs + workMs,
  };
  const commonFailures = new CommonFailures({ log: new Events().log, clock });
  const commonFailureOf = (batchId: BatchId) => commonFailures.find(batchId);
  // Two lines a second.
  const meter = new ThroughputEstimator();
  meter.begin(0);
  for (let i = 0; i < 20; i++) meter.count();
  meter.sample(10_000, "full");
  const routes = () => () => [{ ...route, throughput: meter.throughput }];
  const nowMs = () => clock.nowMs();
  const forecaster = new Forecaster({
    store,
    clock,
    nowMs,
    routes,
    commonFailureOf,
    stalls: () => new Map(),
    tolerance: 0,
    projectWeightOf: () => 1,
  });
  return {
    store,
    clock,
    forecaster,
    forecastOf: async ({ id }: Pick<Batch, "id">) => (await store.findForecasts([id]))[0] ?? null,
    async [Symbol.asyncDispose]() {
      await store.close();
      await rm(dir, { recursive: true, force: true });
    },
  };
}

test("a batch is forecast from its creation until it ends", async () => {
  await using opened = await aForecaster();
  const { store, forecaster, forecastOf } = opened;
  const done = await finalizingBatch(store);
  await store.renewReplica(
    { owner: "worker", ttlMs: 10_000, report: "{}", mayKeepHouse: true },
    [],
  );
  const sending = await startBatch(store, ["llama"]);
  const waiting = await startBatch(store, ["llama", "llama"]);
  await claimChunk(store);
  const { batch: validating } = await insertBatch(store);
  expect(await forecastOf(sending.batch)).toBeNull();

  await forecaster.refresh();

  expect(await Promise.all([sending.batch, waiting.batch, validating].map(forecastOf))).toEqual([
    {
      batchId: sending.batch.id,
      etaAtMs: NOW_MS + 10_000,
      isAtRisk: false,
      queuePosition: 0,
      ...NOTHING_ELSE,
    },
    {
      batchId: waiting.batch.id,
      etaAtMs: NOW_MS + 15_000,
      isAtRisk: false,
      queuePosition: 1,
      commonFailure: null,
      waiting: { reason: "no_room", sinceMs: NOW_MS, upstreamError: null },
    },
    {
      batchId: validating.id,
      etaAtMs: null,
      isAtRisk: false,
      queuePosition: 2,
      ...NOTHING_ELSE,
    },
  ]);
  expect(await forecastOf(done.batch)).toBeNull();
});

test("the forecast of a batch that has ended goes with the next look", async () => {
  await using opened = await aForecaster();
  const { store, forecaster, forecastOf } = opened;
  const { batch } = await startBatch(store, ["llama"]);
  await forecaster.refresh();
  expect(await forecastOf(batch)).not.toBeNull();

  await store.cancelBatchIfOpen({ project: PROJECT, id: batch.id });
  await finishBatch(store, await claimToFinalize(store), NO_RESULT);
  await forecaster.refresh();

  expect(await store.listForecasts()).toEqual([]);
});

test("one that takes over knows since when a batch waits, and which forecasts are of batches that have ended", async () => {
  await using opened = await aForecaster();
  const { store, forecaster, forecastOf, clock } = opened;
  const { batch } = await startBatch(store, ["llama"]);
  const waiting = { reason: "no_room", sinceMs: NOW_MS - 60_000, upstreamError: null } as const;
  const former = { etaAtMs: null, isAtRisk: true, queuePosition: 4, waiting, commonFailure: null };
  const ended = "batch_ended" as Batch["id"];
  await store.recordForecasts(
    [
      { batchId: batch.id, ...former },
      { batchId: ended, ...former },
    ],
    [],
  );
  clock.advance(1_000);
  await forecaster.refresh();
  expect(await forecastOf(batch)).toMatchObject({ queuePosition: 1, isAtRisk: false, waiting });
  expect((await store.listForecasts()).map(({ batchId }) => batchId)).toEqual([batch.id]);
});

test("what is at risk is known by its id", async () => {
  await using opened = await aForecaster();
  const { store, forecaster } = opened;
  const late = await startBatch(store, ["llama"], { expiresAtMs: NOW_MS + 8_000 });
  await startBatch(store, ["llama"]);
  await forecaster.refresh();
  expect(await store.listBatchesAtRisk()).toEqual([late.batch.id]);
});
