/**
 * Two servers on one PostgreSQL whose clocks stand still, so that no loop looks for work by itself. Only a nudge
 * makes anything happen.
 */
import { join } from "node:path";
import { Client } from "pg";
import { describe, expect, test } from "vitest";
import { openDiskBlobs } from "../../src/blobs/disk.ts";
import { systemClock } from "../../src/clock.ts";
import { openPostgresStore } from "../../src/store/postgres/store.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { Fleet } from "../support/fleet.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { sharePostgres } from "../support/postgres.ts";
import { Scrape } from "../support/prometheus.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { TcpProxy } from "../support/tcp-proxy.ts";
import { startUpstream } from "../support/upstream.ts";
import { named } from "../support/waits.ts";

const postgres = forAllTests(await sharePostgres("the nudges of PostgreSQL"));

/** They take far longer than a nudge. */
const MANY_LINES = 5_000;

async function startReplica(options: {
  readonly url: string;
  readonly dataDir: string;
  readonly upstreamUrl?: string;
  readonly role: "api" | "worker";
}) {
  const { url, dataDir, role } = options;
  // The database decides whether a window is over, so the dates must be near its own.
  const clock = new FakeClock(Date.now());
  return startTestService({
    dataDir,
    clock,
    role,
    config: { engine: { stop_grace_seconds: 0, drain_grace_seconds: 0 } },
    ...(options.upstreamUrl !== undefined && { upstreamUrl: options.upstreamUrl }),
    openStorage: async (_config, { closers }) => {
      const opened = await openPostgresStore({
        url,
        poolSize: 4,
        listens: true,
        clock: systemClock,
      });
      if (!opened.ok) throw new Error(opened.problem);
      closers.add("store", () => opened.store.close());
      const blobs = await openDiskBlobs(join(dataDir, "blobs"), { isShared: true });
      return { ok: true, store: opened.store, blobs };
    },
  });
}

async function startPair() {
  const folder = temporaryFolder("batchd-nudges-");
  const upstream = await startUpstream();
  const places = { url: await postgres!.createDatabase(), dataDir: folder.path };
  const worker = await startReplica({ ...places, role: "worker", upstreamUrl: upstream.url });
  const api = await startReplica({ ...places, role: "api" });
  return {
    upstream,
    worker,
    api,
    url: places.url,
    async [Symbol.asyncDispose]() {
      upstream.release();
      await api[Symbol.asyncDispose]();
      await worker[Symbol.asyncDispose]();
      await upstream.close();
      folder[Symbol.dispose]();
    },
  };
}

const LINE = JSON.stringify({
  custom_id: "a",
  method: "POST",
  url: "/v1/chat/completions",
  body: { model: "m", messages: [{ role: "user", content: "Hi" }] },
});

describe.skipIf(postgres === null)("a server that looks for nothing by itself", () => {
  test("takes a batch that another one has created, and stops one that another one has cancelled", async () => {
    await using pair = await startPair();
    const { api, upstream } = pair;
    upstream.hold();
    const { id } = await api.submit([LINE]);
    await upstream.reached(1);
    await api.openai.batches.cancel(id);
    await expect.poll(async () => (await api.openai.batches.retrieve(id)).status).toBe("cancelled");
  });

  test("pauses and resumes a batch when another one was asked to", async () => {
    await using pair = await startPair();
    const { api, worker, upstream } = pair;
    const ask = (id: string, action: string) =>
      fetch(`${api.url}/v1/batches/${id}/${action}`, { method: "POST" });
    const { id } = await api.submit(chatLines(MANY_LINES, () => "[[delay 100]]"));
    await upstream.reached(1);
    expect((await ask(id, "pause")).status).toBe(200);
    await worker.events.reached("chunk.ended", { batch: id, ended: "pause" });
    const sent = upstream.total;
    expect(sent).toBeLessThan(MANY_LINES);
    expect((await ask(id, "resume")).status).toBe(200);
    await upstream.reached(sent + 1);
  });

  test("is nudged again after its connection was lost", async () => {
    await using pair = await startPair();
    const { api, upstream } = pair;
    const client = new Client(pair.url);
    await client.connect();
    const listening =
      "from pg_stat_activity where query = 'listen batchd' and datname = current_database()";
    await expect.poll(async () => (await client.query(`select 1 ${listening}`)).rowCount).toBe(2);
    await client.query(`select pg_terminate_backend(pid) ${listening}`);
    await client.end();
    await api.submit([LINE]);
    await upstream.reached(1);
  });

  test("notices a connection through which nothing passes any more, and closes in spite of one", async () => {
    const url = await postgres!.createDatabase();
    const proxy = await TcpProxy.before(url);
    const clock = new FakeClock();
    const opened = await openPostgresStore({
      url: `${proxy.urlOf(url)}?query_timeout=1000`,
      poolSize: 2,
      listens: true,
      clock,
    });
    if (!opened.ok) throw new Error(opened.problem);
    const { store } = opened;
    let beginCount = 0;
    store.onNudge((nudge) => void (nudge === "batch_created" && beginCount++));
    await expect.poll(() => beginCount).toBe(1);
    // The question at the end of its pause, and then the pause before the next connection.
    await clock.asleep(1, clock.nowMs() + 30_000);
    proxy.network = "silent";
    clock.advance(30_000);
    await clock.asleep(1, clock.nowMs() + 1);
    proxy.network = "well";
    clock.advance(1_000);
    await expect.poll(() => beginCount).toBe(2);
    proxy.network = "silent";
    await named(() => "the end of the store", store.close());
    proxy.network = "cut";
  });

  test.each([true, false])(
    "reads its configuration again when another one was asked to (listens: %s)",
    async (listen) => {
      const databaseUrl = await postgres!.createDatabase();
      await using fleet = new Fleet({ databaseUrl, config: { database: { listen } } });
      const [asked, other] = await Promise.all([fleet.api(), fleet.worker()]);
      // The file has not changed, so no other server would read it again by itself.
      asked.batchd.signal("SIGHUP");
      await expect
        .poll(async () => {
          const text = await (await fetch(`${other.url}/metrics`)).text();
          return new Scrape(text).value("batchd_config_reloads_total", { outcome: "ok" });
        })
        .toBeGreaterThan(0);
    },
  );
});
