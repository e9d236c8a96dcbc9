/** Budgets and quotas of what answers take: the store decides which lines may go out. */
import { expect, test } from "vitest";
import { amountOf } from "../../src/batch/price.ts";
import { NO_SPENDING, type Spending } from "../../src/batch/spending.ts";
import type { ChunkLease } from "../../src/store/leases.ts";
import type { SpendingQuotas } from "../../src/store/spending.ts";
import type { Store } from "../../src/store/store.ts";
import {
  AFTER_LEASES_MS,
  aBatch,
  aSegment,
  at,
  claimChunk,
  NOW_MS,
  PROJECT,
  startBatch,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const NO_QUOTAS: SpendingQuotas = { tokensPerDay: null, costPerMonth: null };
/** A line that may take a token and cost 1. */
const ONE: Spending = { tokens: 1, cost: amountOf("1") };
const DAY_MS = 24 * 60 * 60 * 1000;

const times = (count: number): Spending => ({ tokens: count, cost: amountOf(String(count)) });

function reserve(
  store: Store,
  lease: ChunkLease,
  {
    inFlight = NO_SPENDING,
    quotas = NO_QUOTAS,
  }: { readonly inFlight?: Spending; readonly quotas?: SpendingQuotas } = {},
) {
  return store.reserveIfLeased(lease, {
    project: PROJECT,
    quotas,
    inFlight,
    needed: ONE,
    wanted: ONE,
  });
}

/** A segment whose answers have used `count` tokens and cost as much. */
const paid = (count: number) =>
  aSegment({
    modelUsage: [
      {
        model: "llama",
        day: new Date(NOW_MS).toISOString().slice(0, 10),
        requestCount: count,
        inputTokens: count,
        cachedTokens: 0,
        outputTokens: 0,
        price: {
          currency: "USD",
          per: 1,
          input: "1",
          cachedInput: "1",
          output: "1",
          perRequest: "0",
        },
      },
    ],
  });

/** The leases of chunks of one batch, by two workers. */
async function chunksOf(store: Store, budget: string | null, count = 2) {
  const models = Array.from({ length: count }, (_, n) => `model-${n}`);
  const { batch } = await startBatch(store, models, { budget });
  const leases: ChunkLease[] = [];
  for (const model of models) {
    leases.push((await claimChunk(store, { model })).lease);
  }
  return { batch, leases };
}

const BOUNDS = [
  ["budget", "5", NO_QUOTAS],
  ["tokens_per_day", null, { tokensPerDay: 5, costPerMonth: null }],
  ["cost_per_month", null, { tokensPerDay: null, costPerMonth: "5" }],
] as const;

export function testSpending(open: OpenStore): void {
  test.each(BOUNDS)(
    "%s: of many chunks that ask at once exactly as many get a line as fit",
    async (_, budget, quotas) => {
      const { store } = await open();
      const { leases } = await chunksOf(store, budget, 9);
      const results = await Promise.all(leases.map((lease) => reserve(store, lease, { quotas })));
      const kinds = results.map(({ kind }) => kind).sort();
      expect(kinds).toEqual([...Array(5).fill("granted"), ...Array(4).fill("wait")]);
    },
  );

  test.each(BOUNDS)(
    "%s: what was used counts, and the batch pauses when no line fits beside it",
    async (reason, budget, quotas) => {
      const { store } = await open();
      const { batch, leases } = await chunksOf(store, budget);
      const [a, b] = leases as [ChunkLease, ChunkLease];
      await store.recordSegmentIfLeased(a, paid(4));
      expect(await reserve(store, a, { quotas })).toEqual({ kind: "granted", granted: ONE });
      expect(await reserve(store, b, { quotas })).toEqual({ kind: "wait" });
      expect(await reserve(store, a, { inFlight: ONE, quotas })).toEqual({ kind: "wait" });
      await store.recordSegmentIfLeased(a, paid(1));
      expect(await reserve(store, b, { quotas })).toEqual({
        kind: "exhausted",
        reason,
        limit: "5",
      });
      const found = await store.findBatch({ project: PROJECT, id: batch.id });
      expect(found?.paused).toEqual({ sinceMs: NOW_MS, reason });
      expect(await reserve(store, a, { quotas })).toEqual({ kind: "not_held" });
      const pauses = await store.listQuotaPauses(0);
      expect(pauses.map((pause) => pause.reason)).toEqual(reason === "budget" ? [] : [reason]);
      expect(await store.resumeBatchIfPaused(batch, "requested")).toBe(false);
      expect(await store.resumeBatchIfPaused(batch, reason)).toBe(true);
      expect(await store.listQuotaPauses(0)).toEqual([]);
    },
  );

  test("a chunk far from the limit gets room for many lines, and leaves most of it to others", async () => {
    const { store } = await open();
    const { leases } = await chunksOf(store, "1000");
    const [a, b] = leases as [ChunkLease, ChunkLease];
    const ask = (lease: ChunkLease) =>
      store.reserveIfLeased(lease, {
        project: PROJECT,
        quotas: NO_QUOTAS,
        inFlight: NO_SPENDING,
        needed: ONE,
        wanted: times(100),
      });
    expect(await ask(a)).toEqual({ kind: "granted", granted: times(100) });
    expect(await ask(b)).toEqual({ kind: "granted", granted: times(100) });
    const near = await store.reserveIfLeased(a, {
      project: PROJECT,
      quotas: NO_QUOTAS,
      inFlight: times(890),
      needed: ONE,
      wanted: times(100),
    });
    expect(near).toMatchObject({ kind: "granted" });
    expect((near as { granted: Spending }).granted.tokens).toBeLessThanOrEqual(3);
  });

  test("the reservation of a worker that died ends with its lease", async () => {
    const { store } = await open();
    const { leases } = await chunksOf(store, "1");
    const [a] = leases as [ChunkLease];
    expect(await reserve(store, a)).toMatchObject({ kind: "granted" });
    at(store, AFTER_LEASES_MS);
    const next = (await claimChunk(store, { model: "model-1" })).lease;
    expect(await reserve(store, next)).toMatchObject({ kind: "granted" });
  });

  test("a worker whose reservation went to others has lost its lease, so that its answers do not count beside theirs", async () => {
    const { store } = await open();
    const { leases } = await chunksOf(store, "2", 3);
    const [a, b] = leases as [ChunkLease, ChunkLease];
    expect(await reserve(store, a)).toMatchObject({ kind: "granted" });
    expect(await reserve(store, b)).toMatchObject({ kind: "granted" });
    at(store, AFTER_LEASES_MS);
    // Without another worker that asks, a late one loses nothing.
    expect(await store.recordSegmentIfLeased(b, paid(1))).toBe(true);
    const next = (await claimChunk(store, { model: "model-2" })).lease;
    expect(await reserve(store, next)).toMatchObject({ kind: "granted" });

    expect(await store.recordSegmentIfLeased(a, paid(1))).toBe(false);
    const renewal = await store.renewLeases(
      { batches: [], chunks: [a, next] },
      { owner: "late", ttlMs: 30_000 },
    );
    expect(renewal.lostChunks).toEqual([a]);
    expect(await store.recordSegmentIfLeased(next, paid(1))).toBe(true);
    expect(await reserve(store, next)).toMatchObject({ kind: "exhausted" });
  });

  test("projects do not use up the quotas of each other, and yesterday counts no more", async () => {
    const { store } = await open();
    const quotas = { tokensPerDay: 5, costPerMonth: null };
    const { leases } = await chunksOf(store, null);
    const [a] = leases as [ChunkLease];
    await store.recordSegmentIfLeased(a, paid(5));
    const insertion = (project: string) =>
      store.insertBatch(aBatch({ project }), {
        quotas: { openBatches: null, files: null, storedBytes: null, ...quotas },
      });
    await expect(insertion(PROJECT)).rejects.toMatchObject({ quota: "tokens_per_day", limit: 5 });
    await insertion("other");
    at(store, NOW_MS + DAY_MS);
    await insertion(PROJECT);
  });

  test.each(BOUNDS.slice(1))(
    "%s: what all batches of a project used counts, and what is taken back counts no more",
    async (reason, _budget, quotas) => {
      const { store } = await open();
      const [a, b] = [(await chunksOf(store, null)).leases, (await chunksOf(store, null)).leases];
      const lost = paid(2);
      await store.recordSegmentIfLeased(a[0]!, paid(1));
      await store.recordSegmentIfLeased(a[1]!, lost);
      await store.recordSegmentIfLeased(b[0]!, paid(2));
      const exhausted = { kind: "exhausted", reason, limit: "5" };
      expect(await reserve(store, b[0]!, { quotas })).toEqual(exhausted);
      await store.removeSegmentsIfLeased(a[1]!, [lost.blobKey]);
      expect(await reserve(store, a[0]!, { quotas })).toEqual({ kind: "granted", granted: ONE });
    },
  );

  test("a client's change holds for a batch that may send lines, and only metadata afterwards", async () => {
    const { store } = await open();
    const { batch } = await chunksOf(store, "1");
    const change = { budget: "2.50", priority: 3, metadata: { a: "b" } };
    expect(await store.updateBatchIfAllowed(batch, change)).toBe(true);
    expect(await store.findBatch(batch)).toMatchObject(change);
    const foreign = { project: "other", id: batch.id };
    expect(await store.updateBatchIfAllowed(foreign, { metadata: null })).toBe(false);
    await store.cancelBatchIfOpen(batch);
    expect(await store.updateBatchIfAllowed(batch, { budget: null })).toBe(false);
    expect(await store.updateBatchIfAllowed(batch, { priority: 1 })).toBe(false);
    expect(await store.updateBatchIfAllowed(batch, { metadata: null })).toBe(true);
    expect(await store.findBatch(batch)).toMatchObject({ ...change, metadata: null });
  });
}
