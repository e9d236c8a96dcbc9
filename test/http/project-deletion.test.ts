import { join } from "node:path";
import Database from "better-sqlite3";
import { Client } from "pg";
import { describe, expect, test } from "vitest";
import { DELETION_MS } from "../../src/store/projects.ts";
import { bytesBelow, pathsBelow } from "../support/files-below.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { query, sharePostgres } from "../support/postgres.ts";
import { ask, clientOf, create, post, upload } from "../support/projects.ts";
import { startReceiver } from "../support/receiver.ts";
import { chatLine, startTestService, type TestService } from "../support/service.ts";
import { SlowUpload } from "../support/slow-upload.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const admin = "key-admin";
/** Stands in every text that a client of the doomed project writes. */
const MARK = "needle-7f3a";
/** There are so many batches that a round of a deletion leaves some of them open. */
const MORE_THAN_A_ROUND = 105;

const postgres = forAllTests(await sharePostgres("projects on several servers"));

const put = (url: string, body: object) => post(url, "admin/projects", body, admin);
const remove = (url: string, name: string) =>
  ask(url, `admin/projects/${name}`, { method: "DELETE" }, admin);
const keyOf = async (url: string, project: string) =>
  ((await post(url, "admin/keys", { name: "k", project }, admin)).body as { key?: string })
    .key as string;

interface Place {
  readonly dataDir: string;
  readonly databaseUrl: string | null;
}

/** Returns all rows of all tables, as one text for each. */
async function rowsOf({ dataDir, databaseUrl }: Place): Promise<string[]> {
  if (databaseUrl === null) {
    const db = new Database(join(dataDir, "batchd.sqlite"), { readonly: true });
    const all = (query: string) => db.prepare(query).all() as Record<string, string>[];
    const names = all("select name from sqlite_master where type = 'table'");
    const rows = names.flatMap(({ name }) =>
      all(`select * from "${name}"`).map((row) => `${name} ${JSON.stringify(row)}`),
    );
    db.close();
    return rows;
  }
  const client = new Client(databaseUrl);
  await client.connect();
  const names = await client.query(
    "select tablename as name from pg_tables where schemaname = 'public'",
  );
  const rows: string[] = [];
  for (const { name } of names.rows) {
    const found = await client.query(`select * from "${name}"`);
    rows.push(...found.rows.map((row) => `${name} ${JSON.stringify(row)}`));
  }
  await client.end();
  return rows;
}

/** Counts the batches for which it is so. */
async function countOf({ dataDir, databaseUrl }: Place, condition: string): Promise<number> {
  const counting = `select count(*) as count from batches where ${condition}`;
  if (databaseUrl !== null) return Number((await query(databaseUrl, counting))[0]?.["count"]);
  const db = new Database(join(dataDir, "batchd.sqlite"), { readonly: true });
  const count = db.prepare(counting).pluck().get() as number;
  db.close();
  return count;
}

/** Lets the time be over for which deletions go on. */
async function endDeletions({ dataDir, databaseUrl }: Place): Promise<void> {
  const statement = `update projects set deleted_at_ms = deleted_at_ms - ${DELETION_MS}`;
  if (databaseUrl === null) {
    const db = new Database(join(dataDir, "batchd.sqlite"));
    db.exec(statement);
    db.close();
    return;
  }
  await query(databaseUrl, statement);
}

const blobsIn = ({ dataDir }: Place): string[] => pathsBelow(join(dataDir, "blobs"));

describe.each([
  ["one server with SQLite", null, true],
  ["two servers with PostgreSQL", postgres, postgres !== null],
] as const)("on %s", (_, database, canRun) => {
  const start = async (dataDir: string, config: object) => {
    const databaseUrl = (await database?.createDatabase()) ?? null;
    const places = {
      data_dir: dataDir,
      ...(databaseUrl !== null && { database_url: databaseUrl }),
    };
    const keys = [{ name: "operator", key: admin, scopes: ["admin"] }];
    const configWith = (more: readonly object[]) => ({
      auth: { keys: [...keys, ...more] },
      ...places,
      ...config,
    });
    const startOne = () => startTestService({ dataDir, config: configWith([]) });
    const services = [await startOne()];
    if (databaseUrl !== null) services.push(await startOne());
    return {
      place: { dataDir, databaseUrl },
      services,
      first: services[0] as TestService,
      last: services.at(-1) as TestService,
      /** Gives the servers these keys as well. */
      reconfigure: (more: readonly object[]) => {
        for (const service of services) service.reconfigure(configWith(more));
      },
      async [Symbol.asyncDispose]() {
        for (const service of services) await service[Symbol.asyncDispose]();
      },
    };
  };

  test.skipIf(!canRun)(
    "rules of a project are in force at every server soon, changed ones too, also without nudges",
    async () => {
      using folder = temporaryFolder("batchd-project-");
      const config = database === null ? {} : { database: { listen: false } };
      await using servers = await start(folder.path, config);
      const { first, last } = servers;
      const key = await keyOf(first.url, "search");
      const statusOfUpload = async () => (await upload(last.url, undefined, key)).status;
      await expect.poll(statusOfUpload).toBe(200);
      await put(first.url, { name: "search", quotas: { files: 1 } });
      await expect.poll(statusOfUpload).toBe(429);
      await put(first.url, { name: "search" });
      await expect.poll(statusOfUpload).toBe(200);
      expect((await remove(first.url, "serach")).status).toBe(404);
      expect((await remove(first.url, "search")).status).toBe(200);
      expect((await remove(last.url, "search")).status).toBe(200);
      await expect.poll(statusOfUpload).toBe(401);
    },
  );

  test.skipIf(!canRun)(
    "a project that is being deleted takes nothing that would be lost: neither a key, nor a request that writes",
    async () => {
      using folder = temporaryFolder("batchd-project-");
      const config = database === null ? {} : { database: { listen: false } };
      await using servers = await start(folder.path, config);
      const { first, last, services, reconfigure } = servers;
      await upload(first.url, undefined, await keyOf(first.url, "doomed"));
      expect((await remove(first.url, "doomed")).status).toBe(200);
      const refused = await post(last.url, "admin/keys", { name: "k", project: "doomed" }, admin);
      expect(refused).toMatchObject({
        status: 409,
        body: { error: { type: "invalid_request_error" } },
      });
      expect(refused.body.error?.message).toContain(
        "The data of the project doomed is being deleted",
      );

      reconfigure([
        { name: "late", key: "key-late", project: "doomed", scopes: ["read", "write"] },
      ]);
      for (const { url } of services) {
        await expect.poll(async () => (await upload(url, undefined, "key-late")).status).toBe(403);
        // A server that did not know of the deletion yet has taken some.
        const listed = async () => (await ask(url, "files", {}, "key-late")).body.data;
        await expect.poll(listed, { interval: 200 }).toEqual([]);
      }
    },
  );

  test.skipIf(!canRun)(
    "a project that is being deleted sends none of the lines that its quota had held back",
    async () => {
      await using upstream = await startUpstream();
      using folder = temporaryFolder("batchd-project-");
      await using servers = await start(folder.path, {
        upstreams: [{ name: "only", base_url: upstream.url, models: ["*"] }],
      });
      const { place, first, last } = servers;
      await put(first.url, { name: "doomed", quotas: { tokens_per_day: 1, files: 1 } });
      const key = await keyOf(first.url, "doomed");
      const input = Array.from({ length: 5 }, (_, n) => `${chatLine(`${n}`, MARK)}\n`).join("");
      const file = (await upload(first.url, input, key)).body.id as string;
      // A server that does not know of the quotas yet would send lines.
      await expect.poll(async () => (await upload(last.url, input, key)).status).toBe(429);
      for (let n = 0; n < MORE_THAN_A_ROUND; n++) await create(first.url, file, { key });
      const heldBack = () => countOf(place, "pause_reason = 'tokens_per_day'");
      await expect.poll(heldBack, { interval: 200 }).toBe(MORE_THAN_A_ROUND);
      expect((await remove(last.url, "doomed")).status).toBe(200);
      await expect.poll(() => countOf(place, "true"), { interval: 200 }).toBe(0);
      expect(upstream.total).toBe(0);
    },
  );

  test.skipIf(!canRun)(
    "an upload that outlasts the deletion of its project stores nothing in the next project of the name",
    async () => {
      using folder = temporaryFolder("batchd-project-");
      await using servers = await start(folder.path, {});
      const { place, first, last } = servers;
      const slow = new SlowUpload(last.url, await keyOf(last.url, "doomed"));
      await slow.send("late");
      const rowsIn = async (table: string) =>
        (await rowsOf(place)).filter((row) => row.startsWith(`${table} `));
      await expect.poll(() => rowsIn("blob_intents")).toHaveLength(1);
      expect((await remove(last.url, "doomed")).status).toBe(200);
      await endDeletions(place);
      await expect.poll(() => rowsIn("projects"), { interval: 200 }).toEqual([]);
      const next = await keyOf(first.url, "doomed");
      expect(await slow.end()).toBe(403);
      expect((await ask(first.url, "files", {}, next)).body.data).toEqual([]);
      expect(blobsIn(place)).toEqual([]);
    },
  );

  test.skipIf(!canRun)(
    "an upload that begins with its file after the deletion of its project stores nothing in the next one",
    async () => {
      using folder = temporaryFolder("batchd-project-");
      await using servers = await start(folder.path, {});
      const { place, first, last } = servers;
      await put(last.url, { name: "doomed", quotas: { requests_per_minute: 1_000 } });
      const key = await keyOf(last.url, "doomed");
      // The server has taken the request once it has counted it.
      const rowsIn = async (table: string) =>
        (await rowsOf(place)).filter((row) => row.startsWith(`${table} `));
      await expect
        .poll(async () =>
          (await ask(last.url, "files", {}, key)).headers.get("x-ratelimit-limit-requests"),
        )
        .toBe("1000");
      const counted = await rowsIn("request_counts");
      const slow = new SlowUpload(last.url, key, { waits: true });
      await expect.poll(() => rowsIn("request_counts")).not.toEqual(counted);
      expect((await remove(last.url, "doomed")).status).toBe(200);
      await endDeletions(place);
      await expect.poll(() => rowsIn("projects"), { interval: 200 }).toEqual([]);
      const next = await keyOf(first.url, "doomed");
      await expect.poll(async () => (await upload(last.url, undefined, next)).status).toBe(200);
      const before = (await ask(first.url, "files", {}, next)).body.data;
      await slow.begin();
      await slow.send("late");
      expect(await slow.end()).toBe(403);
      expect((await ask(first.url, "files", {}, next)).body.data).toEqual(before);
    },
  );

  test.skipIf(!canRun)(
    "deleting a project leaves nothing of it behind, in the database or among the blobs",
    async () => {
      await using upstream = await startUpstream();
      await using receiver = await startReceiver();
      receiver.reactAlways({ status: 500 });
      using folder = temporaryFolder("batchd-project-");
      await using servers = await start(folder.path, {
        upstreams: [{ name: "only", base_url: upstream.url, models: ["*"] }],
        prices: [{ model: "*", per_request: "1", currency: "EUR" }],
        engine: { stop_grace_seconds: 0 },
        webhooks: {
          endpoints: [
            { name: "hook", url: receiver.url, secret: "whsec_dGVzdC1zZWNyZXQtb2YtaG9vaw==" },
          ],
          allow_private_hosts: ["127.0.0.1"],
        },
      });
      const { place, services, first, last } = servers;
      const { url } = first;
      const quotas = {
        requests_per_minute: 1_000,
        interactive_at_once: 5,
        cost_per_month: "7531.2468",
      };
      await put(url, { name: "doomed", quotas });
      const [doomed, kept] = [await keyOf(url, "doomed"), await keyOf(url, "kept")];
      const send = async (path: string, body: object, headers: Record<string, string> = {}) => {
        const response = await fetch(`${url}/v1/${path}`, {
          method: "POST",
          headers: { authorization: `Bearer ${doomed}`, ...headers },
          body: JSON.stringify(body),
        });
        const made = (await response.json()) as { id: string };
        expect([path, response.status, made]).toEqual([path, 200, expect.anything()]);
        return made.id;
      };
      const line = chatLine(`${MARK}-a`, `${MARK} [[status 400]]`);
      const input = `${chatLine(`${MARK}-b`, MARK)}\n${line}\n`;
      const store = async (key: string) => (await upload(url, input, key)).body.id as string;
      const batchOf = (input_file_id: string, x_batchd: object = {}) =>
        send("batches", {
          input_file_id,
          endpoint: "/v1/chat/completions",
          completion_window: "24h",
          metadata: { team: MARK },
          x_batchd,
        });
      const completed = (batch: string) =>
        Promise.race(services.map(({ events }) => events.reached("batch.completed", { batch })));

      const survivor = (await upload(url, undefined, kept)).body.id as string;
      const before = blobsIn(place).length;
      // An ended batch with a retry, a paused one, and one whose requests are under way.
      const file = await store(doomed);
      const ended = await batchOf(file, { budget: "9" });
      await completed(ended);
      const retry = await send("batches", {
        endpoint: "/v1/chat/completions",
        completion_window: "24h",
        x_batchd: { from: { batch: ended, lines: "all", merge: true } },
      });
      await completed(retry);
      // What the model server refuses for want of credit is held, which all servers know.
      const refused = Array.from({ length: 5 }, async () => {
        const messages = [{ role: "user", content: "[[status 402]]" }];
        const body = JSON.stringify({ model: MARK, messages });
        const headers = { authorization: `Bearer ${doomed}` };
        const init = { method: "POST", headers, body };
        return (await fetch(`${url}/v1/chat/completions`, init)).status;
      });
      expect(new Set(await Promise.all(refused))).toEqual(new Set([502]));
      const held = async () =>
        JSON.stringify((await ask(last.url, "admin/upstreams", {}, admin)).body);
      await expect.poll(held, { interval: 200 }).toContain(MARK);
      upstream.hold();
      const sentBefore = upstream.total;
      const running = await batchOf(await store(doomed), { budget: "9" });
      await upstream.reached(sentBefore + 1);
      const paused = await batchOf(await store(doomed));
      await send(`batches/${paused}/pause`, {});
      // The claim of a key of a request, and an upload with a part.
      const openai = clientOf(url, doomed);
      const pending = await send(
        "uploads",
        { filename: `${MARK}.jsonl`, purpose: "batch", bytes: 100, mime_type: "text/jsonl" },
        { "idempotency-key": MARK },
      );
      await openai.uploads.parts.create(pending, { data: new File([MARK], "part") });
      // The deliveries of the ended batches wait for another attempt.
      await receiver.reached(2);
      const ids = [file, ended, retry, running, paused, pending, MARK, '"doomed"'];
      const left = async () =>
        (await rowsOf(place)).filter(
          (row) => !row.startsWith("projects ") && ids.some((id) => row.includes(id)),
        );
      const tables = new Set((await left()).map((row) => row.slice(0, row.indexOf(" "))));
      expect([...tables]).toEqual(
        expect.arrayContaining([
          "api_keys",
          "batches",
          "chunks",
          "files",
          "uploads",
          "upload_parts",
          "idempotency_keys",
          "model_usage",
          "request_counts",
          "deliveries",
        ]),
      );

      expect((await remove(last.url, "doomed")).status).toBe(200);
      for (const each of services) {
        await expect.poll(async () => (await ask(each.url, "files", {}, doomed)).status).toBe(401);
      }
      upstream.release();
      await expect.poll(left, { interval: 200 }).toEqual([]);
      await expect.poll(held, { interval: 200 }).not.toContain(MARK);
      await expect.poll(() => blobsIn(place).length, { interval: 200 }).toBe(before);
      expect(bytesBelow(join(place.dataDir, "blobs")).includes(MARK)).toBe(false);
      expect((await ask(url, `files/${survivor}`, {}, kept)).status).toBe(200);
      // The name is the only thing that is kept, for an hour.
      const marks = (await rowsOf(place)).filter((row) => row.startsWith("projects "));
      expect(marks).toHaveLength(1);
      expect(marks[0]).not.toContain("7531.2468");
      expect((await put(url, { name: "doomed" })).status).toBe(409);
    },
  );
});
