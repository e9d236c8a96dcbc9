/** Servers that are cut off from PostgreSQL, while others are not, and servers whose clocks are wrong. */
import { describe, expect, test } from "vitest";
import {
  eventually,
  expectEveryLineOnce,
  Fleet,
  type Member,
  submit,
  type Worker,
} from "../support/fleet.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { sharePostgres } from "../support/postgres.ts";
import { Scrape } from "../support/prometheus.ts";
import { TcpProxy } from "../support/tcp-proxy.ts";
import { named } from "../support/waits.ts";
import { clockWrongBy } from "../support/wrong-clock.ts";

/** They are two chunks, of which each worker takes one. */
const LINES = 900;
/** They leave a worker room for more. */
const FEW_LINES = 8;
/** Two workers share them, and a worker that knows no other one has sixteen at the start. */
const SLOTS = 24;
/** The lines that a worker gets answers for before it is disturbed. */
const ANSWERED = 100;
/** A silence is noticed when no statement has been answered for so long; half a minute when the URL does not say it. */
const STATEMENT_MS = 10_000;
/** It is longer than a busy machine may keep a worker from renewing its leases, and much shorter than the shift. */
const LONG_LEASE_SECONDS = 10;
const SHIFT_MS = 5 * 60_000;

const postgres = forAllTests(await sharePostgres("servers that are cut off from PostgreSQL"));

const metricsOf = async ({ url }: Member) =>
  new Scrape(await (await fetch(`${url}/metrics`)).text());

const lostChunks = async (member: Member) =>
  (await metricsOf(member)).value("batchd_lease_changes_total", { kind: "chunk", change: "lost" });

const slotsOf = async (member: Member) =>
  (await metricsOf(member)).value("batchd_upstream_concurrency_limit", { target: "model" });

const isReady = async ({ url }: Member) => (await fetch(`${url}/ready`)).status;

async function refusalOf({ url }: Member): Promise<unknown> {
  const answer = await named(() => "the refusal", fetch(`${url}/v1/batches`));
  const { error } = (await answer.json()) as { error: Record<string, unknown> };
  return { status: answer.status, retryAfter: answer.headers.get("retry-after"), ...error };
}

const UNAVAILABLE = {
  status: 503,
  retryAfter: "2",
  type: "server_error",
  param: null,
  code: null,
  message: expect.stringContaining("cannot reach its database"),
};

interface Members {
  readonly api: Member;
  readonly cutOffApi: Member;
  readonly cutOff: Worker;
  readonly other: Worker;
}

async function expectOthersToGoOn(
  { api, cutOffApi, cutOff, other }: Members,
  setNetwork: (state: "well" | "broken") => void,
): Promise<void> {
  const workers = [cutOff, other];
  const sentBefore = workers.map(({ upstream }) => upstream.total);
  const lostBefore = await lostChunks(cutOff);
  // None of them takes all lines before the other has its part of the slots.
  for (const { upstream } of workers) upstream.holdAfter(upstream.total + ANSWERED);
  const id = await submit(cutOffApi, LINES);
  await Promise.all(
    workers.map(({ upstream }, i) => upstream.reached(sentBefore[i]! + ANSWERED + 1)),
  );
  setNetwork("broken");
  other.upstream.release();
  const refusal = refusalOf(cutOffApi);
  await expectEveryLineOnce(api, id, LINES);
  expect(await refusal).toEqual(UNAVAILABLE);
  expect(await isReady(cutOff)).toBe(503);

  await eventually("the slots of the worker that is cut off", () => slotsOf(cutOff)).toBe(0);
  const sent = other.upstream.total + cutOff.upstream.total;

  cutOff.upstream.release();
  setNetwork("well");
  await eventually("/ready of the worker that was cut off", () => isReady(cutOff)).toBe(200);
  const lost = async () => (await lostChunks(cutOff)) - lostBefore;
  await eventually("its lost chunks", lost).toBeGreaterThan(0);
  await expectEveryLineOnce(cutOffApi, id, LINES);
  expect(other.upstream.total + cutOff.upstream.total).toBe(sent);
}

describe.skipIf(postgres === null)("on PostgreSQL", () => {
  test("a network that is cut, or silent, between some servers and the database: they wait, the others go on, and nothing is doubled", async () => {
    const databaseUrl = await postgres!.createDatabase();
    const proxy = await TcpProxy.before(databaseUrl);
    const behind = { databaseUrl: `${proxy.urlOf(databaseUrl)}?query_timeout=${STATEMENT_MS}` };
    await using fleet = new Fleet({ databaseUrl });
    const [api, cutOffApi] = await Promise.all([fleet.api(), fleet.api(behind)]);
    const [cutOff, other] = await Promise.all([fleet.worker(behind), fleet.worker()]);
    const members = { api, cutOffApi, cutOff, other };
    for (const network of ["cut", "silent"] as const) {
      await expectOthersToGoOn(members, (state) => {
        proxy.network = state === "well" ? "well" : network;
      });
    }
  });

  test("after an outage of the database for all workers, none takes the lines that another one has in flight", async () => {
    const databaseUrl = await postgres!.createDatabase();
    await using fleet = new Fleet({ databaseUrl });
    const api = await fleet.api();
    const start = async () => {
      const proxy = await TcpProxy.before(databaseUrl);
      const fields = { max_concurrency: SLOTS };
      const worker = await fleet.worker({ databaseUrl: proxy.urlOf(databaseUrl), fields });
      worker.upstream.hold();
      return { ...worker, proxy };
    };
    const workers = await Promise.all([start(), start()]);
    // They know each other, as workers that run for some seconds do.
    for (const worker of workers)
      await eventually("its part", () => slotsOf(worker)).toBe(SLOTS / 2);
    const id = await submit(api, FEW_LINES);
    const holder = await Promise.any(
      workers.map((worker) => worker.upstream.reached(FEW_LINES).then(() => worker)),
    );
    const [other] = workers.filter((worker) => worker !== holder);

    for (const { proxy } of workers) proxy.network = "cut";
    for (const worker of workers) await eventually("its slots", () => slotsOf(worker)).toBe(0);
    // The one that is back first has room, and looks for work.
    other!.proxy.network = "well";
    await eventually("the slots of the first", () => slotsOf(other!)).not.toBe(0);
    const next = await submit(api, 1);
    holder.proxy.network = "well";
    for (const { upstream } of workers) upstream.release();
    await expectEveryLineOnce(api, next, 1);
    await expectEveryLineOnce(api, id, FEW_LINES);
    expect(await lostChunks(holder)).toBe(0);
    expect(holder.upstream.total + other!.upstream.total).toBe(FEW_LINES + 1);
  });

  test("clocks that are ten minutes apart change nothing: no lease is lost before its time, and none is kept after it", async () => {
    const config = { engine: { lease_seconds: LONG_LEASE_SECONDS } };
    await using fleet = new Fleet({ databaseUrl: await postgres!.createDatabase(), config });
    const api = await fleet.api({ env: clockWrongBy(-SHIFT_MS) });
    const [ahead, behind] = await Promise.all([
      fleet.worker({ env: clockWrongBy(SHIFT_MS) }),
      fleet.worker({ env: clockWrongBy(-SHIFT_MS) }),
    ]);
    const workers = [ahead, behind];
    for (const { upstream } of workers) upstream.holdAfter(ANSWERED);
    const id = await submit(api, LINES);
    await Promise.all(workers.map(({ upstream }) => upstream.reachedLines(ANSWERED + 1)));
    for (const { upstream } of workers) upstream.release();
    await expectEveryLineOnce(api, id, LINES);
    for (const worker of workers) expect(await lostChunks(worker)).toBe(0);
    expect(ahead.upstream.total + behind.upstream.total).toBe(LINES);

    // The one that is ahead must not wait longer for the lease of the one that is behind.
    for (const { upstream } of workers) upstream.hold();
    const next = await submit(api, LINES);
    await behind.upstream.reached(behind.upstream.total + 1);
    await behind.batchd.kill();
    ahead.upstream.release();
    await expectEveryLineOnce(api, next, LINES);
  });
});
