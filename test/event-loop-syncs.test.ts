/**
 * The event loop waits for each sync of a commit to SQLite, for some milliseconds on a usual disk. So what is done for hundreds of
 * things in one turn shares a sync, or has none. `strace` counts the syncs of a real server. No turn becomes long by that.
 */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setImmediate as nextTurn } from "node:timers/promises";
import Database from "better-sqlite3";
import { describe, expect, test } from "vitest";
import { openSqliteStore } from "../src/store/sqlite/store.ts";
import { FakeClock } from "./support/fake-clock.ts";
import { BatchdProcess } from "./support/process.ts";
import { canTrace } from "./support/programs.ts";
import { chatLine, startTestService } from "./support/service.ts";
import { NOW_MS, PROJECT, startBatch, temporaryFolder } from "./support/store-builders.ts";
import { startUpstream } from "./support/upstream.ts";

/** Starts a server on the folder. `count` tells how often the log of its database was synced. */
function startTraced(dataDir: string, settings: object = {}) {
  const [config, trace] = [`${dataDir}.yaml`, `${dataDir}.syncs`];
  writeFileSync(config, JSON.stringify(settings));
  const args = ["serve", "--port", "0", "--config", config, "--data-dir", dataDir];
  const server = new BatchdProcess(args, { SYNCS_TO: trace });
  const count = () => readFileSync(trace, "utf8").split("-wal>").length - 1;
  return { server, count, [Symbol.asyncDispose]: () => server[Symbol.asyncDispose]() };
}

const numbersUpTo = (count: number) => `
  with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < ${count})`;

describe.skipIf(!canTrace("the tests that count syncs"))("where strace is", () => {
  test("files that are removed share the syncs of a page", async () => {
    using folder = temporaryFolder("batchd-syncs-");
    const dataDir = join(folder.path, "data");
    await (await startTestService({ dataDir })).close();
    const db = new Database(join(dataDir, "batchd.sqlite"));
    db.exec(`
      ${numbersUpTo(1_000)} insert into files (id, project, purpose, filename, bytes, sha256, blob_key, created_at_ms, expires_at_ms)
      select 'file-' || n, 'p', 'batch', 'f', 1, 'x', 'files/file-' || n, 1, 2 from numbers`);
    await using traced = startTraced(dataDir);
    const left = db.prepare("select count(*) from files").pluck();
    await expect.poll(() => left.get()).toBe(0);
    await traced.server.kill("SIGTERM");
    db.close();
    expect(traced.count()).toBeGreaterThan(2);
    expect(traced.count()).toBeLessThan(100);
  });

  test("batches of a deleted project share the syncs of their deletion, and are removed without one", async () => {
    using folder = temporaryFolder("batchd-syncs-");
    const dataDir = join(folder.path, "data");
    await (await startTestService({ dataDir })).close();
    const db = new Database(join(dataDir, "batchd.sqlite"));
    const now = Date.now();
    db.exec(`
      insert into projects (name, rules, created_at_ms, changed_at_ms, deleted_at_ms) values ('p', '{}', 1, ${now}, ${now});
      ${numbersUpTo(1_000)} insert into batches (id, project, endpoint, input_file_id, status, created_at_ms, expires_at_ms,
        failed_at_ms, total_count)
      select 'batch_' || n, 'p', '/v1/chat/completions', 'file-' || n, 'failed', n, ${now + 3_600_000}, 1, 0 from numbers`);
    await using traced = startTraced(dataDir);
    const left = db.prepare("select count(*) from batches").pluck();
    await expect.poll(() => left.get()).toBe(0);
    await traced.server.kill("SIGTERM");
    db.close();
    expect(traced.count()).toBeGreaterThan(2);
    expect(traced.count()).toBeLessThan(500);
  });

  test("chunks that a server gives back at its end need no sync each", async () => {
    await using upstream = await startUpstream();
    using folder = temporaryFolder("batchd-syncs-");
    const dataDir = join(folder.path, "data");
    const service = await startTestService({ dataDir });
    const line = chatLine("a", "[[hang]]");
    const fileId = await service.upload([line]);
    await service.close();
    const db = new Database(join(dataDir, "batchd.sqlite"));
    db.exec(`
      ${numbersUpTo(500)} insert into batches (id, project, endpoint, input_file_id, status, created_at_ms, expires_at_ms,
        in_progress_at_ms, has_chunks, total_count)
      select 'batch_' || n, project, '/v1/chat/completions', files.id, 'in_progress', n, ${Date.now() + 3_600_000}, 1, 1, 1
      from numbers, files where files.id = '${fileId}';
      ${numbersUpTo(500)} insert into chunks (batch_id, number, model, line_count, extents)
      select 'batch_' || n, 0, 'm', 1, '[{"start":0,"end":${line.length},"firstLine":1}]' from numbers`);
    const upstreams = [{ name: "u", base_url: upstream.url, models: ["*"] }];
    await using traced = startTraced(dataDir, { upstreams, engine: { drain_grace_seconds: 1 } });
    const held = db.prepare("select count(*) from chunks where lease_owner is not null").pluck();
    await expect.poll(() => held.get()).toBeGreaterThan(40);
    const before = traced.count();
    await traced.server.kill("SIGTERM");
    expect(held.get()).toBe(0);
    db.close();
    expect(traced.count() - before).toBeLessThan(20);
  });

  test("attempts at events that fail need no sync each", async () => {
    using folder = temporaryFolder("batchd-syncs-");
    const dataDir = join(folder.path, "data");
    const service = await startTestService({ dataDir });
    const { id } = await service.submit([chatLine("a", "Hello")]);
    await service.events.reached("batch.failed", { batch: id });
    await service.close();
    const db = new Database(join(dataDir, "batchd.sqlite"));
    // No webhook of this name is configured.
    db.exec(`
      ${numbersUpTo(500)} insert into deliveries (webhook_id, event_id, webhook, batch_id, status, created_at_ms, next_attempt_at_ms)
      select 'wh_' || n, 'evt_' || n, 'gone', '${id}', 'failed', ${Date.now()}, 1 from numbers`);
    await using traced = startTraced(dataDir);
    const untried = db.prepare("select count(*) from deliveries where attempt_count = 0").pluck();
    await expect.poll(() => untried.get()).toBe(0);
    await traced.server.kill("SIGTERM");
    db.close();
    expect(traced.count()).toBeLessThan(50);
  });
});

test("a turn of a project's deletion closes no more chunks than one of any other stop", async () => {
  using folder = temporaryFolder("batchd-turns-");
  const path = join(folder.path, "batchd.sqlite");
  const opened = await openSqliteStore({ path, clock: new FakeClock(NOW_MS) });
  if (!opened.ok) throw new Error(opened.problem);
  const { store } = opened;
  for (let n = 0; n < 20; n++) await startBatch(store, Array<string>(30).fill("llama"));
  await store.beginDeletingProjectIfPresent(PROJECT);
  const db = new Database(path);
  const closed = db.prepare("select count(*) from chunks where closed_at_ms > 0").pluck();
  const counts: number[] = [];
  const purging = store.purgeProject(PROJECT).then(() => true);
  do counts.push(closed.get() as number);
  while (!(await Promise.race([purging, nextTurn(false)])));
  expect(Math.max(...counts.map((count, i) => count - (counts[i - 1] ?? 0)))).toBe(100);
  while ((await store.closeUnheldChunks()) > 0);
  expect(closed.get()).toBe(600);
  db.close();
  await store.close();
});
