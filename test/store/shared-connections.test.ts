/** The projects of a server share its connections to PostgreSQL, however many requests one of them has sent. */
import { crc32 } from "node:zlib";
import OpenAI from "openai";
import { Client } from "pg";
import { describe, expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { openPostgresStore } from "../../src/store/postgres/store.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { sharePostgres } from "../support/postgres.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { SlowUpload } from "../support/slow-upload.ts";
import { claimBy, insertBatch } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

/** The rows of locks for lists, which projects share by a hash. */
const LISTS = 1024;

/** The time for which a call waits for a connection, several times over. */
const WAIT_MS = 5_000;

const postgres = await sharePostgres("shared connections");
const upstream = forAllTests(await startUpstream());

/** A server with two projects, `a` and `b`, and a second connection to its database. */
async function startShared(poolSize: number, clock = systemClock) {
  const url = await postgres!.createDatabase();
  const keys = ["a", "b"].map((project) => ({ name: project, key: `key-${project}`, project }));
  const database = { database_url: url, database: { pool_size: poolSize } };
  // The intents of uploads are renewed with the leases.
  const config = { ...database, auth: { keys }, engine: { lease_seconds: 3 } };
  const service = await startTestService({ upstreamUrl: upstream.url, config, clock });
  const second = new Client(url);
  await second.connect();
  const clientOf = (project: string) =>
    new OpenAI({ baseURL: `${service.url}/v1`, apiKey: `key-${project}`, maxRetries: 0 });
  const submit = async (openai: OpenAI) => {
    const file = new File([chatLines(1).join("\n")], "input.jsonl");
    const input = await openai.files.create({ file, purpose: "batch" });
    return openai.batches.create({
      input_file_id: input.id,
      endpoint: "/v1/chat/completions",
      completion_window: "24h",
    });
  };
  return {
    ...{ service, url, second, submit, a: clientOf("a"), b: clientOf("b") },
    /** Resolves to the number of connections of the server that wait for a row. */
    waitingForRows: async () => {
      const { rows } = await second.query<{ count: string }>(
        `select count(*) from pg_stat_activity
         where datname = current_database() and application_name = 'batchd' and wait_event_type = 'Lock'`,
      );
      return Number(rows[0]?.count);
    },
    async [Symbol.asyncDispose]() {
      await second.end();
      await service[Symbol.asyncDispose]();
    },
  };
}

const rename = (openai: OpenAI, id: string) =>
  openai.post(`/batches/${id}`, { body: { metadata: { name: "new" } } });

describe.skipIf(postgres === null)("the connections to the database", () => {
  test("are not all for a project whose requests wait for a row: those of others and the work of the server go on", async () => {
    await using shared = await startShared(4);
    const { service, second, submit, a, b } = shared;
    const { id } = await submit(a);
    await service.events.reached("batch.completed", { batch: id });
    await second.query("begin");
    await second.query("select from batches where id = $1 for update", [id]);
    const renamed = Array.from({ length: 20 }, () => rename(a, id));
    await expect.poll(shared.waitingForRows).toBeGreaterThan(0);
    const batch = await submit(b);
    await service.events.reached("batch.completed", { batch: batch.id });
    expect((await b.batches.retrieve(batch.id)).status).toBe("completed");
    expect(await shared.waitingForRows()).toBeLessThanOrEqual(2);
    await second.query("rollback");
    await Promise.all(renamed);
  });

  test("that a project waits for in vain, because its own requests have its part, are no failure of the database", async () => {
    // The waits for a connection are short.
    const after: typeof systemClock.after = (ms, fn) =>
      systemClock.after(ms === WAIT_MS ? 10 : ms, fn);
    await using shared = await startShared(4, { ...systemClock, after });
    const { service, second, submit, a, b } = shared;
    const { id } = await submit(a);
    await service.events.reached("batch.completed", { batch: id });
    await second.query("begin");
    await second.query("select from batches where id = $1 for update", [id]);
    const answers: unknown[] = [];
    const renamed = Array.from({ length: 20 }, () =>
      rename(a, id).catch((error: unknown) => answers.push(error)),
    );
    await expect.poll(() => answers.length, { timeout: 20_000 }).toBeGreaterThan(10);
    for (const error of answers) {
      expect(error).toMatchObject({ status: 429, code: "rate_limit_exceeded" });
      expect((error as { headers: Headers }).headers.get("retry-after")).toBe("1");
    }
    expect((await b.models.list()).data).toHaveLength(1);
    await second.query("rollback");
    await Promise.all(renamed);
    expect(service.events.count("request.completed", { level: "error" })).toBe(0);
  });

  test("are not all for the work of the server: clients are answered while its statements wait for a locked table", async () => {
    await using shared = await startShared(4);
    const { second, submit, a } = shared;
    upstream.hold();
    const batches = await Promise.all(Array.from({ length: 6 }, () => submit(a)));
    await upstream.reached(upstream.total - upstream.inFlight + batches.length);
    await second.query("begin");
    await second.query("lock table segments in access exclusive mode");
    upstream.release();
    await expect.poll(shared.waitingForRows).toBeGreaterThan(2);
    for (const { id } of batches) {
      expect((await a.batches.retrieve(id)).status).toBe("in_progress");
    }
    expect(await shared.waitingForRows()).toBe(3);
    await second.query("rollback");
    for (const { id } of batches) {
      await shared.service.events.reached("batch.completed", { batch: id });
    }
  });

  test("are given to each project in turn: a request does not wait behind all that another project sent before", async () => {
    await using shared = await startShared(1);
    const { service, second, submit, a, b } = shared;
    const { id } = await submit(a);
    await service.events.reached("batch.completed", { batch: id });
    const ofB = await submit(b);
    await service.events.reached("batch.completed", { batch: ofB.id });
    await second.query("begin");
    await second.query("select from batches where id = $1 for update", [id]);
    const answered: string[] = [];
    const noted = (project: string, request: Promise<unknown>) =>
      request.then(() => void answered.push(project));
    const first = rename(a, id);
    await expect.poll(shared.waitingForRows).toBe(1);
    const sent = Array.from({ length: 50 }, () => noted("a", a.batches.retrieve(id)));
    await fetch(`${service.url}/health`);
    sent.push(noted("b", b.batches.retrieve(ofB.id)));
    await fetch(`${service.url}/health`);
    await second.query("rollback");
    await Promise.all([first, ...sent]);
    expect(answered.indexOf("b")).toBeLessThan(10);
  });

  test("do not wait for each other through the renewal of uploads: one ends while another project waits for its list", async () => {
    await using shared = await startShared(4);
    const { service, url, second, a } = shared;
    // What a connection sees of the others stands still within a transaction.
    const replica = new Client(url);
    await replica.connect();
    await replica.query("begin");
    const lock = "select from project_locks where number = $1 for update";
    await replica.query(lock, [crc32("a") % LISTS]);
    const ofA = a.files.create({ file: new File(["a"], "a.txt"), purpose: "user_data" });
    await expect.poll(shared.waitingForRows).toBe(1);
    const ofB = new SlowUpload(service.url, "key-b");
    await ofB.send("text");
    const lastExpiry = async () => {
      const text = "select count(*), max(expires_at_ms) as last from blob_intents";
      const { rows } = await second.query<{ count: string; last: string }>(text);
      return rows[0]?.count === "2" ? Number(rows[0].last) : 0;
    };
    await expect.poll(lastExpiry).toBeGreaterThan(0);
    const declared = await lastExpiry();
    await expect.poll(lastExpiry).toBeGreaterThan(declared);
    expect(await ofB.end()).toBe(200);
    expect(await shared.waitingForRows()).toBe(1);
    await replica.end();
    expect((await ofA).filename).toBe("a.txt");
  });

  test("hold no row for long: a repeated request and new metadata of a batch need no transaction of several statements", async () => {
    const url = await postgres!.createDatabase();
    let sentCount = 0;
    const opened = await openPostgresStore({
      ...{ url, poolSize: 2, listens: false, clock: systemClock },
      onStatements: (count) => {
        sentCount += count;
      },
    });
    if (!opened.ok) throw new Error(opened.problem);
    const { store } = opened;
    const { id, project } = (await insertBatch(store)).batch;
    const claim = () => store.claimIdempotencyKey(project, "key", claimBy("request"));
    expect(await claim()).toEqual({ kind: "new" });
    sentCount = 0;
    expect(await claim()).toEqual({ kind: "in_progress" });
    expect(sentCount).toBe(2);
    const metadata = { name: "new" };
    expect(await store.updateBatchIfAllowed({ project, id }, { metadata })).toBe(true);
    expect(sentCount).toBe(3);
    await store.close();
  });
});
