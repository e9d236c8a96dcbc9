/** Control over batches and projects on two servers of one PostgreSQL: what one is asked for, both do. */
import { describe, expect, test } from "vitest";
import { type Clock, systemClock } from "../../src/clock.ts";
import { openStorage } from "../../src/runtime/storage/storage.ts";
import type { StoreNudge } from "../../src/store/nudges.ts";
import type { Store } from "../../src/store/store.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { sharePostgres } from "../support/postgres.ts";
import {
  chatLines,
  type ServiceOptions,
  startTestService,
  type TestService,
} from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";
import { named } from "../support/waits.ts";

const postgres = forAllTests(await sharePostgres("control over a fleet"));

/** A clock on which nothing happens that is due `ms` later or after that. */
const clockWithout = (ms: number): Clock => ({
  ...systemClock,
  after: (dueMs, fn) => (dueMs < ms ? systemClock.after(dueMs, fn) : () => {}),
});
/** Only a nudge makes the sweep begin. */
const clock = clockWithout(60_000);
/** Only a nudge makes a heartbeat begin. */
const clockWithoutHeartbeat = clockWithout(7_000);
/** How soon control reaches a server without nudges. */
const GUARANTEE_MS = 10_000;

/** Opens the storage of a server whose first claim is committed, but not answered before `release` is called. */
function slowClaim() {
  const committed = Promise.withResolvers<void>();
  const released = Promise.withResolvers<void>();
  const renewed = Promise.withResolvers<void>();
  const stopping = Promise.withResolvers<void>();
  let isCommitted = false;
  const slow = (store: Store): Store => ({
    ...store,
    claimChunks: async (claim) => {
      const claimed = await store.claimChunks(claim);
      if (claimed.length === 0) return claimed;
      isCommitted = true;
      committed.resolve();
      await released.promise;
      return claimed;
    },
    renewLeases: async (held, claim) => {
      const renewal = await store.renewLeases(held, claim);
      if (held.chunks.length > 0) renewed.resolve();
      return renewal;
    },
    onNudge: (listener) =>
      store.onNudge((nudge: StoreNudge) => {
        listener(nudge);
        // A listener takes a nudge for missed when it begins.
        if (isCommitted && nudge === "batch_stopping") stopping.resolve();
      }),
  });
  const open: NonNullable<ServiceOptions["openStorage"]> = async (config, deps) => {
    const opened = await openStorage(config, deps);
    return opened.ok ? { ...opened, store: slow(opened.store) } : opened;
  };
  return {
    open,
    committed: named(() => "a claim", committed.promise),
    renewed: named(() => "a renewal of a chunk", renewed.promise),
    nudged: named(() => "a nudge to stop", stopping.promise),
    release: () => released.resolve(),
  };
}

/** Opens the storage of a server. `next` resolves once leases were renewed that are asked for from then on. */
function heartbeatsOf() {
  const waits = new Set<() => void>();
  const open: NonNullable<ServiceOptions["openStorage"]> = async (config, deps) => {
    const opened = await openStorage(config, deps);
    if (!opened.ok) return opened;
    const { store } = opened;
    const renewLeases: Store["renewLeases"] = async (held, claim) => {
      const waiting = [...waits];
      const renewal = await store.renewLeases(held, claim);
      for (const end of waiting) end();
      return renewal;
    };
    return { ...opened, store: { ...store, renewLeases } };
  };
  const next = () => {
    const { promise, resolve } = Promise.withResolvers<void>();
    waits.add(resolve);
    return named(() => "a heartbeat", promise);
  };
  return { open, next };
}

describe.skipIf(postgres === null)("on two servers of one database", () => {
  test("a pause also ends the run of a chunk whose claim is under way at the other server", async () => {
    using folder = temporaryFolder("batchd-control-fleet-");
    await using upstream = await startUpstream();
    const config = {
      data_dir: folder.path,
      database_url: await postgres!.createDatabase(),
      upstreams: [{ name: "one", base_url: upstream.url, models: ["*"], max_concurrency: 2 }],
      engine: { lease_seconds: 600 },
    };
    const claim = slowClaim();
    const both = { dataDir: folder.path, config, clock: clockWithoutHeartbeat };
    await using api = await startTestService({ ...both, role: "api" });
    await using worker = await startTestService({
      ...both,
      openStorage: claim.open,
      role: "worker",
    });
    upstream.hold();
    const { id } = await api.submit(chatLines(300));
    await claim.committed;
    const pause = { method: "POST" };
    expect((await fetch(`${api.url}/v1/batches/${id}/pause`, pause)).status).toBe(200);
    await claim.nudged;
    claim.release();
    await claim.renewed;
    upstream.release();
    await worker.events.reached("chunk.ended", { batch: id, ended: "pause" });
    expect(upstream.total).toBeLessThanOrEqual(2);
  });

  test("without nudges, and however long leases are, all reach the other server without anything that takes ten seconds", async () => {
    using folder = temporaryFolder("batchd-control-fleet-");
    await using upstream = await startUpstream();
    const config = {
      data_dir: folder.path,
      database_url: await postgres!.createDatabase(),
      database: { listen: false },
      prices: [{ model: "*", per_request: "1", currency: "EUR" }],
      upstreams: [{ name: "one", base_url: upstream.url, models: ["*"], max_concurrency: 2 }],
      engine: { lease_seconds: 600, stop_grace_seconds: 0 },
    };
    const both = { dataDir: folder.path, config, clock: clockWithout(GUARANTEE_MS) };
    await using api = await startTestService({ ...both, role: "api" });
    const heartbeats = heartbeatsOf();
    await using worker = await startTestService({
      ...both,
      openStorage: heartbeats.open,
      role: "worker",
    });
    const ask = (path: string, method = "POST") =>
      fetch(`${api.url}/v1/batches/${path}`, { method });
    upstream.hold();
    const { id } = await api.submit(chatLines(300));
    await upstream.reached(1);
    expect((await ask(`${id}/pause`)).status).toBe(200);
    await heartbeats.next();
    upstream.release();
    await worker.events.reached("chunk.ended", { batch: id, ended: "pause" });
    // The requests that were in flight: of the next ones none went out.
    const sent = upstream.total;
    expect(sent).toBeLessThanOrEqual(2);
    upstream.hold();
    expect((await ask(`${id}/resume`)).status).toBe(200);
    await upstream.reached(sent + 1);
    expect((await ask(`${id}/cancel`)).status).toBe(200);
    await worker.events.reached("batch.cancelled", { batch: id });
    const before = upstream.total;
    const other = await api.submit(chatLines(300));
    await upstream.reached(before + 1);
    expect((await ask(other.id, "DELETE")).status).toBe(200);
    await worker.events.reached("chunk.ended", { batch: other.id, ended: "batch" });
    upstream.release();
    const sentBefore = upstream.total;
    expect(sentBefore).toBeLessThanOrEqual(before + 2);
    upstream.hold();
    const third = await api.submit(chatLines(300));
    await upstream.reached(sentBefore + 1);
    const headers = { "content-type": "application/json" };
    const body = JSON.stringify({ budget: "1" });
    const budgeted = { method: "POST", headers, body };
    expect((await fetch(`${api.url}/v1/batches/${third.id}`, budgeted)).status).toBe(200);
    await heartbeats.next();
    upstream.release();
    await worker.events.reached("batch.paused", { batch: third.id });
    // Some requests were in flight. Without the budget all lines would go out.
    expect(upstream.total).toBeLessThan(sentBefore + 10);
  });

  test("a deleted batch is removed at once, whichever server was asked", async () => {
    using folder = temporaryFolder("batchd-control-fleet-");
    await using upstream = await startUpstream();
    const config = {
      data_dir: folder.path,
      database_url: await postgres!.createDatabase(),
      upstreams: [{ name: "one", base_url: upstream.url, models: ["*"] }],
      engine: { stop_grace_seconds: 0 },
    };
    const start = () => startTestService({ dataDir: folder.path, config, clock });
    // The first server keeps house.
    await using first = await start();
    await using second = await start();
    const remove = async (id: string) => {
      const response = await fetch(`${second.url}/v1/batches/${id}`, { method: "DELETE" });
      expect(response.status).toBe(200);
    };
    const ended = await second.submit(chatLines(3));
    await Promise.race(
      [first, second].map(({ events }) => events.reached("batch.completed", { batch: ended.id })),
    );
    await remove(ended.id);
    await first.events.reached("batch.removed", { batch: ended.id });
    upstream.hold();
    const running = await second.submit(chatLines(3));
    await upstream.reached(4);
    await remove(running.id);
    await first.events.reached("batch.removed", { batch: running.id });
    upstream.release();
  });

  test("pauses, resumes, cancels and deletes at the same moment end in a state that both explain", async () => {
    using folder = temporaryFolder("batchd-control-fleet-");
    await using upstream = await startUpstream();
    const config = {
      data_dir: folder.path,
      database_url: await postgres!.createDatabase(),
      upstreams: [{ name: "one", base_url: upstream.url, models: ["*"], max_concurrency: 4 }],
      engine: { stop_grace_seconds: 0 },
    };
    const start = () => startTestService({ dataDir: folder.path, config });
    await using first = await start();
    await using second = await start();
    const servers = [first, second];
    const ask = (service: TestService, id: string, [method, path]: readonly [string, string]) =>
      fetch(`${service.url}/v1/batches/${id}${path}`, { method });
    const [pause, resume, cancel, remove] = [
      ["POST", "/pause"] as const,
      ["POST", "/resume"] as const,
      ["POST", "/cancel"] as const,
      ["DELETE", ""] as const,
    ];
    const race = async (id: string, actions: readonly (readonly [string, string])[]) => {
      const asked = actions.flatMap((action) => servers.map((service) => ask(service, id, action)));
      const answers = await Promise.all(asked);
      for (const { status } of answers) expect([200, 404, 409]).toContain(status);
    };
    for (let round = 0; round < 3; round++) {
      const kept = await first.submit(chatLines(60));
      await race(kept.id, [pause, cancel, resume, pause]);
      const ended = await Promise.race(servers.map((service) => service.ended(kept.id)));
      expect(["cancelled", "completed"]).toContain(ended.status);
      const { total = 0, completed = 0 } = ended.request_counts ?? {};
      const rows = [ended.output_file_id, ended.error_file_id].map((id) =>
        id == null ? [] : first.rows(id),
      );
      const [output = [], errors = []] = await Promise.all(rows);
      expect([output.length, output.length + errors.length]).toEqual([completed, total]);

      const deleted = await second.submit(chatLines(60));
      await race(deleted.id, [pause, remove, cancel, resume, remove]);
      for (const service of servers) {
        expect((await ask(service, deleted.id, ["GET", ""])).status).toBe(404);
      }
      await Promise.race(
        servers.map(({ events }) => events.reached("batch.removed", { batch: deleted.id })),
      );
    }
  });
});
