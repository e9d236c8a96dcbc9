/** Workers that share one upstream: as processes on one PostgreSQL, and one whose renewal is late. */
import { join } from "node:path";
import { PassThrough } from "node:stream";
import { describe, expect, test, vi } from "vitest";
import { UpstreamEntry } from "../../../src/config/upstreams.ts";
import { CapacitySharing } from "../../../src/engine/fleet/capacity-sharing.ts";
import { Fleet as KnownFleet } from "../../../src/engine/fleet/fleet.ts";
import { openSqliteStore } from "../../../src/store/sqlite/store.ts";
import type { Store } from "../../../src/store/store.ts";
import { createLog } from "../../../src/telemetry/log.ts";
import { openUpstreams } from "../../../src/upstream/upstreams.ts";
import { FakeClock } from "../../support/fake-clock.ts";
import {
  answeredLines,
  completed,
  eventually,
  Fleet,
  type Member,
  numbersTo,
  submit,
} from "../../support/fleet.ts";
import { forAllTests } from "../../support/for-all-tests.ts";
import { sharePostgres } from "../../support/postgres.ts";
import { Scrape } from "../../support/prometheus.ts";
import { temporaryFolder } from "../../support/store-builders.ts";
import { unobserved } from "../../support/unobserved.ts";

const LIMIT = 8;

const postgres = forAllTests(await sharePostgres("the shares of replicas"));

/** Waits for the slots of these servers. */
const slots = (...members: readonly Member[]) =>
  eventually("the slots of each server", () => Promise.all(members.map(slotCountOf)));

async function slotCountOf({ url }: Pick<Member, "url">): Promise<number> {
  const scrape = new Scrape(await (await fetch(`${url}/metrics`)).text());
  return scrape.value("batchd_upstream_concurrency_limit", { target: "model" });
}

describe.skipIf(postgres === null)("max_concurrency", () => {
  test("holds for all workers together, and goes to those that are there", async () => {
    await using fleet = new Fleet({ databaseUrl: await postgres!.createDatabase() });
    const upstream = await fleet.upstream();
    const fields = { max_concurrency: LIMIT, min_concurrency: LIMIT, interactive_reserve: 0 };
    const start = () => fleet.worker({ upstream, fields });
    const api = await fleet.api();
    const first = await start();
    await slots(first).toEqual([LIMIT]);
    const id = await submit(api, 1_000, 120);
    await upstream.reachedLines(20);
    const second = await start();
    await slots(first, second).toEqual([LIMIT / 2, LIMIT / 2]);
    await first.batchd.kill();
    await slots(second).toEqual([LIMIT]);
    await completed(api, id);
    expect(upstream.maxInFlight).toBe(LIMIT);
    expect(await answeredLines(api, id)).toEqual(numbersTo(1_000));
  });
});

describe.skipIf(postgres === null)("interactive requests at one of four servers", () => {
  const SLOTS = 16;

  /** Asks again whenever it has an answer. */
  async function askOnAndOn({ url }: Member, signal: AbortSignal): Promise<void> {
    const messages = [{ role: "user", content: "[[delay 1000]] Hello" }];
    const body = JSON.stringify({ model: "m", messages });
    while (!signal.aborted) {
      const answer = await fetch(`${url}/v1/chat/completions`, { method: "POST", body });
      expect(answer.status).toBe(200);
      await answer.text();
    }
  }

  test("go before the batches at the others, which keep their share", async () => {
    await using fleet = new Fleet({ databaseUrl: await postgres!.createDatabase() });
    const upstream = await fleet.upstream();
    const bounds = { max_concurrency: SLOTS, min_concurrency: SLOTS };
    const place = { upstream, fields: { ...bounds, batch_share: 0.25 } };
    const api = await fleet.api(place);
    const workers = [
      await fleet.worker(place),
      await fleet.worker(place),
      await fleet.worker(place),
    ];
    await submit(api, 1_500, 1_000);
    const ofWorkers = async () =>
      (await Promise.all(workers.map(slotCountOf))).reduce((sum, count) => sum + count, 0);
    await eventually("the slots of the workers", ofWorkers).toBe(SLOTS - 1);

    const stop = new AbortController();
    const asking = Array.from({ length: 2 * SLOTS }, () => askOnAndOn(api, stop.signal));
    try {
      await slots(api).toEqual([(SLOTS * 3) / 4]);
      await eventually("the slots of the workers", ofWorkers).toBe(SLOTS / 4);
    } finally {
      stop.abort();
      await Promise.all(asking);
    }
    await eventually("the slots of the workers", ofWorkers).toBe(SLOTS - 1);
  });
});

test.skipIf(postgres === null)(
  "an API server keeps the slots of interactive_reserve while workers could use all",
  async () => {
    await using fleet = new Fleet({ databaseUrl: await postgres!.createDatabase() });
    const upstream = await fleet.upstream();
    const bounds = { max_concurrency: LIMIT, min_concurrency: LIMIT };
    const place = { upstream, fields: { ...bounds, interactive_reserve: LIMIT / 2 } };
    const api = await fleet.api(place);
    const worker = await fleet.worker(place);
    await submit(api, 1_000, 500);
    await upstream.reachedLines(LIMIT);
    await slots(worker).toEqual([LIMIT / 2]);
    expect(await slotCountOf(api)).toBe(LIMIT / 2);
  },
);

describe("a part of a limit", () => {
  /** The most slots that a worker on SQLite has of an upstream, for however short a time, if its renewals take `tookMs`. */
  async function mostSlotsIfRenewedIn(tookMs: number): Promise<number> {
    using dir = temporaryFolder("batchd-late-");
    const clock = new FakeClock();
    const log = createLog("silent", new PassThrough());
    const entry = { name: "a", base_url: "http://127.0.0.1:9/v1", models: ["x"] };
    const upstreams = openUpstreams({
      upstreams: [
        UpstreamEntry.parse({ ...entry, max_concurrency: LIMIT, min_concurrency: LIMIT }),
      ],
      maxAnswerBytes: () => 1_000,
      clock,
      log,
      ...unobserved(),
    });
    const opened = await openSqliteStore({ path: join(dir.path, "batchd.sqlite"), clock });
    if (!opened.ok) throw new Error(opened.problem);
    const { store } = opened;
    const renewReplica: Store["renewReplica"] = async (...renewal) => {
      const renewed = await store.renewReplica(...renewal);
      clock.advance(tookMs);
      return renewed;
    };
    const setShares = upstreams.setShares.bind(upstreams);
    const slotCounts: number[] = [];
    vi.spyOn(upstreams, "setShares").mockImplementation((shares) => {
      setShares(shares);
      slotCounts.push(upstreams.findRoute("x")?.slotCount ?? 0);
    });
    const sharing = new CapacitySharing({
      store: { renewReplica, releaseReplica: (owner) => store.releaseReplica(owner) },
      upstreams,
      clock,
      log,
      owner: "us",
      fleet: new KnownFleet(clock),
      report: () => ({
        isWorker: true,
        canWrite: true,
        targets: [],
        routes: [],
        commonFailures: [],
      }),
      mayKeepHouse: () => true,
      limitOf: () => LIMIT,
      renewLeasesIfLate: async () => {},
    });
    await sharing.start();
    await sharing.close();
    await upstreams.close();
    await store.close();
    return Math.max(...slotCounts);
  }

  test("is used when the database answers before its end", async () => {
    expect(await mostSlotsIfRenewedIn(8_999)).toBeGreaterThan(0);
  });

  test("is not used for a moment when the database answers after its end", async () => {
    expect(await mostSlotsIfRenewedIn(9_000)).toBe(0);
  });
});
