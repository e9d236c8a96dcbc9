/** The whole server on PostgreSQL and a folder: killed in the middle of a batch, and with the database away for a while. */
import { once } from "node:events";
import { readdirSync, rmSync, writeFileSync } from "node:fs";
import { request as httpRequest } from "node:http";
import { join } from "node:path";
import { json } from "node:stream/consumers";
import { Client } from "pg";
import { describe, expect, test } from "vitest";
import { createBatch, submitLines, uploadLines } from "../support/batches.ts";
import { runCommand } from "../support/command.ts";
import { endLeases } from "../support/end-leases.ts";
import { expectEveryLineOnce } from "../support/fleet.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { atTestEnd } from "../support/leftovers.ts";
import { clerkOf, PASSWORD, query, startPostgres } from "../support/postgres.ts";
import { BatchdProcess } from "../support/process.ts";
import { serve } from "../support/serve.ts";
import { chatLines } from "../support/service.ts";
import { mountSmallDisk } from "../support/small-disk.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

const LINES = 600;

const postgres = forAllTests(await startPostgres("the server on PostgreSQL"));

interface Waiting {
  readonly x_batchd?: { readonly waiting: { readonly reason: string } | null };
}

interface Setting {
  readonly dataDir: string;
  readonly databaseUrl: string;
  readonly upstream?: TestUpstream;
}

async function start({ dataDir, databaseUrl, upstream }: Setting) {
  const args = ["--port", "0", "--data-dir", dataDir];
  if (upstream !== undefined) args.push("--upstream", upstream.url);
  return serve(args, { BATCHD_DATABASE_URL: databaseUrl });
}

const INPUT_LINES = chatLines(LINES, (n) => `[[delay ${(n * 37) % 60}]] Say ${n}`);
const INPUT = `${INPUT_LINES.join("\n")}\n`;

/** Begins to upload the input. `finish` sends the rest and returns the id of the file. */
async function slowUpload(url: string) {
  const boundary = "the-boundary";
  const part = (name: string) => `--${boundary}\r\nContent-Disposition: form-data; name="${name}"`;
  const head = `${part("purpose")}\r\n\r\nbatch\r\n${part("file")}; filename="input.jsonl"\r\n\r\n`;
  const request = httpRequest(`${url}/v1/files`, {
    method: "POST",
    headers: { "content-type": `multipart/form-data; boundary=${boundary}` },
  });
  request.write(head + INPUT.slice(0, INPUT.length / 2));
  return {
    finish: async () => {
      const answered = once(request, "response");
      request.end(`${INPUT.slice(INPUT.length / 2)}\r\n--${boundary}--\r\n`);
      const [response] = await answered;
      return ((await json(response)) as { id: string }).id;
    },
  };
}

/** The connection ends with the test, also with one that fails: the server must not end it. */
async function connect(databaseUrl: string): Promise<Client> {
  const client = new Client(databaseUrl);
  atTestEnd(() => client.end());
  await client.connect();
  return client;
}

/** Counts the connections to the database for which the condition holds. `watcher` must be in no transaction. */
async function connectionsIn(watcher: Client, condition: string): Promise<number | null> {
  const { rowCount } = await watcher.query(
    `select from pg_stat_activity where datname = current_database() and ${condition}`,
  );
  return rowCount;
}

/** What an operator has to mend, by statements about the user of the servers. Two files are there before. */
const FAULTS = [
  {
    fault: "its user may not write a table",
    begin: (user: string) => `revoke insert on files from ${user}`,
    end: (user: string) => `grant insert on files to ${user}`,
    says: "permission denied for table files",
  },
  {
    fault: "the counter of a table is behind its rows",
    begin: () => "alter sequence files_sequence_seq maxvalue 2 cycle restart 1",
    end: () => "alter sequence files_sequence_seq no maxvalue no cycle restart 100",
    says: "files_pkey",
  },
];

const A_FILE = { file: new File(["{}\n"], "input.jsonl"), purpose: "batch" } as const;

/** Gives the database another name, which ends its connections. Returns what gives it its own one back. */
async function rename(databaseUrl: string): Promise<() => Promise<unknown>> {
  const server = new URL(databaseUrl);
  const name = server.pathname.slice(1);
  server.pathname = "/postgres";
  await query(server.href, `alter database ${name} with allow_connections false`);
  await query(
    server.href,
    `select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = '${name}'`,
  );
  await query(server.href, `alter database ${name} rename to ${name}_away`);
  return async () => {
    await query(server.href, `alter database ${name}_away rename to ${name}`);
    await query(server.href, `alter database ${name} with allow_connections true`);
  };
}

/** Takes the database away in the middle of a batch and gives it back. Returns what the server has logged. */
async function withoutDatabase(
  take: (databaseUrl: string) => Promise<() => Promise<unknown>>,
): Promise<string> {
  using folder = temporaryFolder("batchd-postgres-away-");
  await using upstream = await startUpstream();
  const databaseUrl = await postgres!.createDatabase();
  const dataDir = join(folder.path, "data");
  const { server, openai, url } = await start({ dataDir, databaseUrl, upstream });
  const { id } = await submitLines(openai, INPUT_LINES);
  await upstream.reachedLines(LINES / 3);
  const giveBack = await take(databaseUrl);
  const answer = await fetch(`${url}/v1/batches/${id}`);
  expect([answer.status, answer.headers.get("retry-after")]).toEqual([503, "2"]);
  await giveBack();
  await endLeases(databaseUrl);
  await server.batchEnded(id);
  await expectEveryLineOnce({ openai }, id, LINES);
  return (await server.kill("SIGTERM")).stderr;
}

describe.skipIf(postgres === null)("on PostgreSQL and a folder", () => {
  test("has its files in one folder, also when two servers with folders of their own begin with it together", async () => {
    const databaseUrl = await postgres!.createEmptyDatabase();
    using one = temporaryFolder("batchd-first-");
    using other = temporaryFolder("batchd-second-");
    const servers = [one, other].map(({ path }) => {
      const args = ["serve", "--port", "0", "--data-dir", path];
      return new BatchdProcess(args, { BATCHD_DATABASE_URL: databaseUrl });
    });
    const started = await Promise.allSettled(servers.map((server) => server.listening()));
    const refused = started.filter((each) => each.status === "rejected");
    expect(refused).toHaveLength(1);
    expect(String(refused[0]?.reason)).toContain(
      "the files of this database are in another folder",
    );
    await Promise.all(servers.map((server) => server.kill()));
  });

  test.skipIf(postgres?.server === null)(
    "while the database is away requests get a 503, the batch waits and the log is short; then it goes on",
    async () => {
      const stderr = await withoutDatabase(async () => {
        await postgres!.server!.stop();
        return () => postgres!.server!.start();
      });
      expect(stderr).not.toContain(PASSWORD);
      const ofOutage = stderr.split("\n").filter((line) => line.includes("STORE_UNAVAILABLE"));
      expect(ofOutage.join("\n")).toContain("the database cannot be reached");
      expect(ofOutage.join("\n")).not.toContain("stack");
    },
  );

  test.each(FAULTS)(
    "while $fault a batch keeps all answers and says that it waits; then it ends",
    async ({ begin, end, says }) => {
      using folder = temporaryFolder("batchd-postgres-faults-");
      await using upstream = await startUpstream();
      const owned = await postgres!.createDatabase();
      const databaseUrl = await clerkOf(owned);
      const { username } = new URL(databaseUrl);
      const dataDir = join(folder.path, "data");
      const { server, openai } = await start({ dataDir, databaseUrl, upstream });
      await openai.files.create(A_FILE);
      const input = await uploadLines(openai, INPUT_LINES);
      await query(owned, begin(username));
      const { id } = await createBatch(openai, input);
      const waiting = async () => {
        const batch: object = await openai.batches.retrieve(id);
        return (batch as Waiting).x_batchd?.waiting?.reason;
      };
      await expect.poll(waiting).toBe("storage_unavailable");
      expect(await openai.files.create(A_FILE).catch(({ status }) => status)).toBe(503);
      await query(owned, end(username));
      await server.batchEnded(id);
      await expectEveryLineOnce({ openai }, id, LINES);
      const { stderr } = await server.kill("SIGTERM");
      expect(stderr).toContain(says);
    },
  );

  test("while its database has another name requests get a 503 and the batch waits; then it goes on", async () => {
    await withoutDatabase(rename);
  });

  test("a data folder and a database that do not belong together are not used, with files or without", async () => {
    using folder = temporaryFolder("batchd-postgres-folder-");
    const dataDir = join(folder.path, "data");
    const databaseUrl = await postgres!.createDatabase();
    const refused = async (dir: string, env: Record<string, string>) => {
      const args = ["serve", "--port", "0", "--data-dir", dir];
      const { code, stderr } = await runCommand(args, env);
      expect(code).toBe(1);
      return stderr;
    };
    const empty = await start({ dataDir, databaseUrl });
    const another = { BATCHD_DATABASE_URL: await postgres!.createDatabase() };
    for (const running of [empty, null]) {
      // Nothing that an operator may take for a stale lock keeps the others out.
      rmSync(join(dataDir, "batchd.lock"), { force: true });
      expect(await refused(dataDir, {})).toContain("belong to a database on PostgreSQL");
      expect(await refused(dataDir, another)).toContain("belong to another database on PostgreSQL");
      expect(
        await refused(join(folder.path, "other"), { BATCHD_DATABASE_URL: databaseUrl }),
      ).toMatch(
        /the files of this database are in another folder: there is no \S+other\/batchd\.database/,
      );
      await running?.server.kill("SIGTERM");
    }
    const lost = { BATCHD_DATABASE_URL: await postgres!.createDatabase() };
    const full = await start({
      dataDir: join(folder.path, "full"),
      databaseUrl: lost.BATCHD_DATABASE_URL,
    });
    await submitLines(full.openai, INPUT_LINES);
    await full.server.kill("SIGTERM");
    rmSync(join(folder.path, "full/batchd.database"));
    for (const [env, name] of [
      [{}, "batchd.sqlite"],
      [another, "the database on PostgreSQL"],
    ] as const) {
      expect(await refused(join(folder.path, "full"), env)).toContain(
        `${name} is missing, but there are files in`,
      );
    }
  });

  test("a server that is killed at its very first start, while it takes its folder, starts again", async () => {
    using folder = temporaryFolder("batchd-postgres-first-");
    const databaseUrl = await postgres!.createDatabase();
    const setting = { dataDir: join(folder.path, "data"), databaseUrl };
    await (await start(setting)).server.kill("SIGTERM");
    const [admin, watcher] = [await connect(databaseUrl), await connect(databaseUrl)];
    // From here on the tables are those of a new database.
    rmSync(join(setting.dataDir, "batchd.database"));
    await admin.query(`
      update installation set blob_place = null;
      create function wait_for_admin() returns trigger language plpgsql as $$
        begin perform pg_advisory_xact_lock(7); return null; end $$;
      create trigger waiting after update on installation execute function wait_for_admin();
      select pg_advisory_lock(7)`);
    const killed = new BatchdProcess(["serve", "--port", "0", "--data-dir", setting.dataDir], {
      BATCHD_DATABASE_URL: databaseUrl,
    });
    await expect.poll(() => connectionsIn(watcher, "wait_event = 'advisory'")).toBe(1);
    await killed.kill();
    await admin.end();
    const others = "pid <> pg_backend_pid() and backend_type = 'client backend'";
    await expect.poll(() => connectionsIn(watcher, others)).toBe(0);

    const { server } = await start(setting);
    await server.kill("SIGTERM");
  });

  test("a first start on a full disk says so and leaves nothing, and the next one begins", async () => {
    using folder = temporaryFolder("batchd-postgres-full-");
    const dataDir = join(folder.path, "data");
    using disk = mountSmallDisk(dataDir, 1024 * 1024);
    if (disk === null) return;
    const databaseUrl = await postgres!.createDatabase();
    const filler = join(dataDir, "filler");
    expect(() => writeFileSync(filler, Buffer.alloc(1024 * 1024 + 1))).toThrow("ENOSPC");
    await expect(start({ dataDir, databaseUrl })).rejects.toThrow(
      `cannot write to the data folder ${dataDir}: ENOSPC`,
    );
    expect(readdirSync(dataDir)).toEqual(["filler"]);
    rmSync(filler);
    const { server } = await start({ dataDir, databaseUrl });
    await server.kill("SIGTERM");
  });

  test("two servers share a database and its folder, and one that starts leaves the blobs of the other alone", async () => {
    using folder = temporaryFolder("batchd-postgres-two-");
    await using upstream = await startUpstream();
    const setting = {
      dataDir: join(folder.path, "data"),
      databaseUrl: await postgres!.createDatabase(),
      upstream,
    };
    const [first, early] = await Promise.all([start(setting), start(setting)]);
    const upload = await slowUpload(first.url);
    await expect.poll(() => readdirSync(join(setting.dataDir, "blobs/.tmp"))).toHaveLength(1);
    const second = await start(setting);
    const file = await upload.finish();
    const { id } = await createBatch(second.openai, file);
    await Promise.race([first, second, early].map(({ server }) => server.batchEnded(id)));
    await expectEveryLineOnce(early, id, LINES);
    for (const { server } of [first, early, second]) await server.kill("SIGTERM");
  });

  test("a server that is stopped while it brings the database up to date keeps no other from its start", async () => {
    using folder = temporaryFolder("batchd-postgres-stopped-");
    const databaseUrl = await postgres!.createDatabase();
    const setting = { dataDir: join(folder.path, "data"), databaseUrl };
    await (await start(setting)).server.kill("SIGTERM");
    const [admin, watcher] = [await connect(databaseUrl), await connect(databaseUrl)];
    await admin.query("begin; select from batchd_migrations where hash = 'lock' for update");
    const stopped = new BatchdProcess(["serve", "--port", "0", "--data-dir", setting.dataDir], {
      BATCHD_DATABASE_URL: databaseUrl,
    });
    await expect.poll(() => connectionsIn(watcher, "wait_event_type = 'Lock'")).toBe(1);
    stopped.signal("SIGSTOP");
    await admin.query("commit");
    await admin.end();
    await expect.poll(() => connectionsIn(watcher, "state = 'idle in transaction'")).toBe(1);
    const { server } = await start(setting);
    stopped.signal("SIGCONT");
    expect((await stopped.exited()).stderr).toContain("cannot open the database on PostgreSQL");
    await server.kill("SIGTERM");
  });

  test("the rows that a stopped server has locked are free again after a while, and it makes its own later", async () => {
    using folder = temporaryFolder("batchd-postgres-locks-");
    const databaseUrl = await postgres!.createDatabase();
    const setting = { dataDir: join(folder.path, "data"), databaseUrl };
    const [stopped, other] = await Promise.all([start(setting), start(setting)]);
    const [admin, watcher] = [await connect(databaseUrl), await connect(databaseUrl)];
    await admin.query(`
      create function wait() returns trigger language plpgsql as
        $$ begin perform pg_advisory_xact_lock_shared(42); return null; end $$;
      create trigger wait after insert on files for each row execute function wait();
      select pg_advisory_lock(42)`);
    const upload = ({ openai }: Pick<typeof other, "openai">) => openai.files.create(A_FILE);
    const late = upload(stopped);
    await expect.poll(() => connectionsIn(watcher, "wait_event = 'advisory'")).toBe(1);
    stopped.server.signal("SIGSTOP");
    await admin.end();
    const { id } = await upload(other);
    stopped.server.signal("SIGCONT");
    const ids = [(await late).id, id];
    expect((await stopped.openai.files.list()).data.map((file) => file.id)).toEqual(ids);
    for (const { server } of [stopped, other]) await server.kill("SIGTERM");
  });

  test("a database that is away at the start is reported without its password, and so it is by check", async () => {
    using folder = temporaryFolder("batchd-postgres-none-");
    const env = { BATCHD_DATABASE_URL: `postgres://batchd:${PASSWORD}@127.0.0.1:1/facts` };
    const args = ["--data-dir", folder.path];
    const served = await runCommand(["serve", ...args], env);
    expect([served.code, served.stderr]).toEqual([
      1,
      expect.stringContaining("cannot open the database on PostgreSQL"),
    ]);
    const checked = await runCommand(["check", ...args], env);
    expect(checked.stdout).toContain("@127.0.0.1:1/facts");
    expect(served.stderr + checked.stdout + checked.stderr).not.toContain(PASSWORD);
  });
});
