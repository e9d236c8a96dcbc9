/** A database with a damaged page, as a failing disk leaves it. */
import {
  closeSync,
  copyFileSync,
  existsSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  writeSync,
} from "node:fs";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import Database from "better-sqlite3";
import { Client } from "pg";
import { expect, test } from "vitest";
import type { UploadId } from "../../src/batch/batch.ts";
import { systemClock } from "../../src/clock.ts";
import { StoreDamaged, StoreUnavailable } from "../../src/store/failures.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { sharePostgres } from "../support/postgres.ts";
import { BatchdProcess } from "../support/process.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { claimBy, PROJECT, temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const postgres = forAllTests(await sharePostgres("damage of a database"));

/** Damages the first page of a table while no server runs. Returns a function that mends it. */
function damageTable(dataDir: string, table: string): () => void {
  const path = join(dataDir, "batchd.sqlite");
  const database = new Database(path);
  database.pragma("wal_checkpoint(TRUNCATE)");
  const pageBytes = database.pragma("page_size", { simple: true }) as number;
  const root = database
    .prepare<[string], { rootpage: number }>("select rootpage from sqlite_schema where name = ?")
    .get(table);
  database.close();
  if (root === undefined) throw new Error(`there is no table ${table}`);
  const start = (root.rootpage - 1) * pageBytes;
  const page = readFileSync(path).subarray(start, start + pageBytes);
  const overwrite = (bytes: Uint8Array) => {
    const file = openSync(path, "r+");
    writeSync(file, bytes, 0, bytes.length, start);
    closeSync(file);
  };
  overwrite(Buffer.alloc(pageBytes, 0xa5));
  return () => overwrite(page);
}

const isDamage = (err: unknown) => (err as { code?: string } | undefined)?.code === "STORE_DAMAGED";

test("a damaged page ends all writes and says once what to do, and no line is lost once it is mended", async () => {
  await using upstream = await startUpstream();
  using folder = temporaryFolder("batchd-damage-");
  const options = {
    dataDir: folder.path,
    config: {
      upstreams: [{ name: "u", base_url: upstream.url, models: ["*"] }],
      engine: { drain_grace_seconds: 1 },
    },
  };
  await (await startTestService(options)).close();
  const mend = damageTable(folder.path, "segments");
  const service = await startTestService(options);
  const { id } = await service.submit(chatLines(20));
  await service.events.reached("database.damaged");
  expect((await fetch(`${service.url}/ready`)).status).toBe(503);
  const refused = await fetch(`${service.url}/v1/batches/${id}/cancel`, { method: "POST" });
  expect(refused.status).toBe(503);
  expect(await refused.text()).toContain("its operator has to restore it");
  expect((await fetch(`${service.url}/v1/batches/${id}`)).status).toBe(503);
  await service.close();
  expect(service.events.count("database.damaged")).toBe(1);
  const repetitions = service.events.all.filter(({ err }) => isDamage(err));
  // Each of the requests above that was refused has its line.
  expect(repetitions.map(({ event }) => event)).toEqual(Array(2).fill("request.completed"));
  const [said] = service.events.all.filter(({ event }) => event === "database.damaged");
  expect(said?.["problem"]).toContain("restore it from a backup");

  mend();
  await using after = await startTestService(options);
  const batch = await after.ended(id);
  expect(batch).toMatchObject({ status: "completed", request_counts: { completed: 20 } });
  expect(await after.rows(batch.output_file_id)).toHaveLength(20);
});

test("after damage no call is believed, so that no file is removed which the backup names", async () => {
  using folder = temporaryFolder("batchd-damage-");
  const path = join(folder.path, "batchd.sqlite");
  const first = await openSqliteStore({ path, clock: systemClock });
  if (!first.ok) throw new Error(first.problem);
  await first.store.close();
  damageTable(folder.path, "idempotency_keys");
  const found = Promise.withResolvers<StoreDamaged>();
  const opened = await openSqliteStore({ path, clock: systemClock, onDamaged: found.resolve });
  if (!opened.ok) throw new Error(opened.problem);
  const { store } = opened;
  await using _ = { [Symbol.asyncDispose]: () => store.close() };
  expect(await store.findGarbage(["files/x"])).toEqual(["files/x"]);
  const parts = store.partPages("upload_x" as UploadId);
  await expect(store.claimIdempotencyKey(PROJECT, "key", claimBy("one"))).rejects.toThrow(
    StoreUnavailable,
  );
  await expect(store.findGarbage(["files/x"])).rejects.toThrow(StoreUnavailable);
  await found.promise;
  await expect(store.findGarbage(["files/x"])).rejects.toThrow(StoreDamaged);
  await expect(store.listUnusedFiles(1)).rejects.toThrow(StoreDamaged);
  await expect(store.ping()).rejects.toThrow(StoreDamaged);
  await expect(parts[Symbol.asyncIterator]().next()).rejects.toThrow(StoreDamaged);
});

test("a call that comes after the end finds the database closed, and not damaged, when its file is gone by then", async () => {
  using folder = temporaryFolder("batchd-closed-");
  const path = join(folder.path, "batchd.sqlite");
  const found: StoreDamaged[] = [];
  const onDamaged = (damage: StoreDamaged) => void found.push(damage);
  const opened = await openSqliteStore({ path, clock: systemClock, onDamaged });
  if (!opened.ok) throw new Error(opened.problem);
  await opened.store.close();
  rmSync(path);
  await expect(opened.store.ping()).rejects.toThrow("not open");
  expect(found).toEqual([]);
});

test.each([
  ["removed", (path: string) => rmSync(path)],
  [
    "replaced",
    (path: string) => {
      copyFileSync(path, `${path}.copy`);
      renameSync(`${path}.copy`, path);
    },
  ],
])(
  "a server whose database was %s takes nothing more, which would be gone with it",
  async (done, take) => {
    using folder = temporaryFolder("batchd-moved-");
    await using service = await startTestService({ dataDir: folder.path });
    const path = join(folder.path, "batchd.sqlite");
    take(path);
    const body = new FormData();
    body.set("purpose", "batch");
    body.set("file", new Blob(["{}\n"]), "input.jsonl");
    const refused = await fetch(`${service.url}/v1/files`, { method: "POST", body });
    expect(refused.status).toBe(503);
    expect((await fetch(`${service.url}/ready`)).status).toBe(503);
    await service.events.reached("database.damaged");
    const said = service.events.all.find(({ event }) => event === "database.damaged");
    expect(said?.["problem"]).toContain("its file was removed or replaced");
    expect(existsSync(path)).toBe(done === "replaced");
  },
);

test("a start on a damaged database is refused in one line", async () => {
  using folder = temporaryFolder("batchd-damage-");
  await writeFile(join(folder.path, "batchd.sqlite"), "x".repeat(8_192));
  await using server = new BatchdProcess(["serve", "--port", "0", "--data-dir", folder.path]);
  const { code, stderr } = await server.exited();
  expect(code).toBe(1);
  expect(stderr.trim().split("\n")).toEqual([
    expect.stringMatching(/the database .*batchd\.sqlite is damaged .* restore it from a backup/),
  ]);
});

/** Has the server answer writes to the table with an error that it finds in itself. */
const refusing = (code: string, message: string) => `
  create function refuse() returns trigger language plpgsql as $$
    begin raise exception '${message}' using errcode = '${code}'; end $$;
  create trigger refusal before insert on chunks execute function refuse()`;

/** Starts a server and a client of its database, whose answers to a batch can then be changed. */
async function startOnPostgres(dataDir: string, upstreamUrl: string) {
  const url = await postgres!.createDatabase();
  const service = await startTestService({
    dataDir,
    upstreamUrl,
    config: {
      database_url: url,
      upstreams: [{ name: "u", base_url: upstreamUrl, models: ["*"] }],
      engine: { lease_seconds: 3 },
    },
  });
  const client = new Client({ connectionString: url });
  await client.connect();
  const close = async () => {
    await client.end();
    await service.close();
  };
  return { service, client, [Symbol.asyncDispose]: close };
}

test.skipIf(postgres === null)(
  "damage that PostgreSQL finds is no fault of a batch, which waits until it is mended",
  async () => {
    await using upstream = await startUpstream();
    using folder = temporaryFolder("batchd-damage-");
    await using started = await startOnPostgres(folder.path, upstream.url);
    const { service, client } = started;
    await client.query(refusing("XX001", "invalid page in block 0 of relation"));
    const { id } = await service.submit(chatLines(20));
    await service.events.reached("loop.pass_failed", { loop: "intake" });
    const { rows } = await client.query("select failure_count::int, status from batches");
    expect(rows).toEqual([{ failure_count: 0, status: "validating" }]);
    await client.query("drop trigger refusal on chunks");
    const batch = await service.ended(id);
    expect(batch).toMatchObject({ status: "completed", request_counts: { completed: 20 } });
  },
);

test.skipIf(postgres === null)(
  "another internal error of PostgreSQL counts as a failure of the batch that causes it",
  async () => {
    await using upstream = await startUpstream();
    using folder = temporaryFolder("batchd-damage-");
    await using started = await startOnPostgres(folder.path, upstream.url);
    const { service, client } = started;
    await client.query(refusing("XX000", "invalid memory alloc request size 1073741824"));
    await service.submit(chatLines(20));
    const failureCount = async () => {
      const { rows } = await client.query("select failure_count::int from batches");
      return rows[0].failure_count;
    };
    await expect.poll(failureCount).toBeGreaterThan(0);
  },
);
