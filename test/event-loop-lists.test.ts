/**
 * Nothing that many clients ask for at once about very many batches keeps the event loop for long. A real server, as in
 * `event-loop.test.ts`.
 */
import { mkdtemp } from "node:fs/promises";
import { join } from "node:path";
import Database from "better-sqlite3";
import { expect, test } from "vitest";
import { forAllTests } from "./support/for-all-tests.ts";
import { temporaryFolder } from "./support/store-builders.ts";
import { AGAIN, MAX_TURN_MS, startWatched } from "./support/watched-server.ts";

const folder = forAllTests(temporaryFolder("batchd-turns-")).path;

/** As much metadata as a batch may have, each character with an escape in the row. */
const METADATA = Object.fromEntries(
  Array.from({ length: 16 }, (_, n) => [`key-${n}`, '"'.repeat(512)]),
);

/** Open batches that send nothing, and some that have ended. */
function insertBatches(dataDir: string): void {
  const db = new Database(join(dataDir, "batchd.sqlite"));
  const numbers =
    "with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < ?)";
  const columns = "id, project, endpoint, input_file_id, status, created_at_ms, expires_at_ms";
  db.prepare(
    `${numbers} insert into batches (${columns}, in_progress_at_ms, paused_at_ms, pause_reason, total_count)
     select 'batch_' || n, 'default', '/v1/chat/completions', 'file-x', 'in_progress', n, ?, 1, 1, 'user', 1
     from numbers`,
  ).run(100_000, Date.now() + 24 * 60 * 60 * 1000);
  db.prepare(
    `${numbers} insert into batches (${columns}, failed_at_ms, metadata)
     select 'batch_e' || n, 'default', '/v1/chat/completions', 'file-x', 'failed', n, n, n, ?
     from numbers`,
  ).run(1_000, JSON.stringify(METADATA));
  db.close();
}

test(
  "no turn of the event loop is long for lists that match none of 100,000 batches, nor for a scrape",
  AGAIN,
  async () => {
    const dataDir = await mkdtemp(join(folder, "data-"));
    await using empty = await startWatched(dataDir, []);
    await empty.server.kill("SIGTERM");
    insertBatches(dataDir);
    await using watched = await startWatched(dataDir, []);
    const longestTurnMs = await watched.watch();
    const scrape = await (await fetch(`${watched.url}/metrics`)).text();
    expect(scrape).toContain('batchd_batches_open{status="in_progress"} 100000\n');
    const lists = Array.from({ length: 5 }, async () => {
      const response = await fetch(`${watched.url}/v1/batches?search=nothing`);
      expect(await response.json()).toMatchObject({ data: [], has_more: false });
    });
    await Promise.all(lists);
    expect(await longestTurnMs()).toBeLessThan(MAX_TURN_MS);
  },
);
