/** Databases whose administrator has set what batchd does not expect. */
import { Client } from "pg";
import { describe, expect, test } from "vitest";
import { openStore } from "../ports/opened-postgres.ts";
import { runCommand } from "../support/command.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { clerkOf, sharePostgres } from "../support/postgres.ts";
import {
  aSegment,
  claimChunk,
  PROJECT,
  startBatch,
  temporaryFolder,
} from "../support/store-builders.ts";

const postgres = forAllTests(await sharePostgres("the settings of administrators"));

async function run(url: string, ...statements: readonly string[]): Promise<string[]> {
  const client = new Client(url);
  await client.connect();
  const results: string[] = [];
  for (const text of statements) results.push(JSON.stringify((await client.query(text)).rows));
  await client.end();
  return results;
}

const nameOf = (url: string) => new URL(url).pathname.slice(1);

/** Runs a batch of some chunks, which are closed side by side. */
async function runBatch(url: string): Promise<string | undefined> {
  await using store = await openStore(url);
  const { batch } = await startBatch(store, ["llama", "llama", "llama"]);
  const claimed = [await claimChunk(store), await claimChunk(store), await claimChunk(store)];
  const closed = await Promise.all(
    claimed.map(({ lease }) => store.closeChunkIfLeased(lease, aSegment({ completed: 1 }))),
  );
  expect(closed).toEqual([true, true, true]);
  return (await store.findBatch({ project: PROJECT, id: batch.id }))?.status;
}

describe.skipIf(postgres === null)("a database", () => {
  test.each(["serializable", "repeatable read"])(
    "whose transactions are %s serves replicas that start together",
    async (level) => {
      const url = await postgres!.createEmptyDatabase();
      await run(
        url,
        `alter database ${nameOf(url)} set default_transaction_isolation = '${level}'`,
      );
      const stores = await Promise.all(Array.from({ length: 4 }, () => openStore(url)));
      await Promise.all(stores.map((store) => store.close()));
      expect(await runBatch(url)).toBe("finalizing");
    },
  );

  test("with another schema than `public` has all tables there", async () => {
    const url = await postgres!.createEmptyDatabase();
    const ours = `alter database ${nameOf(url)} set search_path = 'app'`;
    await run(url, "create schema app", ours, "drop schema public");
    expect(await runBatch(url)).toBe("finalizing");
    const schemas = "select distinct schemaname from pg_tables where tablename like '%batch%'";
    expect(await run(url, schemas)).toEqual(['[{"schemaname":"app"}]']);
  });

  test("whose encoding cannot store every text is refused before anything is made in it", async () => {
    const url = await postgres!.createEmptyDatabase();
    await run(
      url.replace(nameOf(url), "postgres"),
      `drop database ${nameOf(url)}`,
      `create database ${nameOf(url)} encoding 'LATIN1' locale 'C' template template0`,
    );
    await expect(openStore(url)).rejects.toThrow("cannot store every text");
    const tables = "select count(*)::int from pg_tables where tablename like 'batch%'";
    expect(await run(url, tables)).toEqual(['[{"count":0}]']);
  });

  test.each([
    ["58030", "cannot write to its disk"],
    ["25P04", "limits the time of transactions"],
    ["54000", "has no numbers left for transactions"],
  ])("that says %s, since it %s, is away and refuses nothing", async (code) => {
    const url = await postgres!.createDatabase();
    await using store = await openStore(url);
    await startBatch(store, ["llama"]);
    const { lease } = await claimChunk(store);
    await run(
      url,
      `create function fail() returns trigger language plpgsql as
        $$ begin raise exception using errcode = '${code}'; end $$`,
      "create trigger fails before update on chunks for each statement execute function fail()",
    );
    const closing = store.closeChunkIfLeased(lease, aSegment());
    await expect(closing).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
    await run(url, "drop trigger fails on chunks");
    expect(await store.closeChunkIfLeased(lease, aSegment())).toBe(true);
  });

  test("that takes no connection for a reason of its own is away and refuses nothing", async ({
    skip,
  }) => {
    const url = await postgres!.createDatabase();
    const [known] = await run(url, "select current_setting('server_version_num')::int >= 170000");
    skip(known !== '[{"?column?":true}]', "PostgreSQL runs nothing at a login before version 17");
    await using store = await openStore(url);
    await startBatch(store, ["llama"]);
    const { lease } = await claimChunk(store);
    const refuse = `create function refuse() returns event_trigger language plpgsql as $$ begin
        if current_setting('application_name') like 'batchd%' then
          raise exception 'no room' using errcode = 'XX000';
        end if; end $$`;
    const end = `select pg_terminate_backend(pid) from pg_stat_activity
      where datname = current_database() and application_name like 'batchd%'`;
    await run(url, refuse, "create event trigger refuses on login execute function refuse()", end);
    const closing = store.closeChunkIfLeased(lease, aSegment());
    await expect(closing).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
    await run(url, "drop event trigger refuses");
    expect(await store.closeChunkIfLeased(lease, aSegment())).toBe(true);
  });

  test("that limits the time of transactions is brought up to date in one that takes longer", async ({
    skip,
  }) => {
    const url = await postgres!.createDatabase();
    const limit = "from pg_settings where name = 'transaction_timeout'";
    const [known] = await run(url, `select count(*)::int ${limit}`);
    skip(known !== '[{"count":1}]', "PostgreSQL has no such limit before version 17");
    const holder = new Client(url);
    await holder.connect();
    await holder.query("begin; select 1 from batchd_migrations where hash = 'lock' for update");
    await run(url, `alter database ${nameOf(url)} set transaction_timeout = '1s'`);
    using folder = temporaryFolder("batchd-late-");
    const args = ["migrate", "--data-dir", folder.path];
    let hasEnded = false;
    const migrated = runCommand(args, { BATCHD_DATABASE_URL: url }).finally(() => {
      hasEnded = true;
    });
    const late = `select count(*)::int from pg_stat_activity where wait_event_type = 'Lock'
      and datname = current_database() and clock_timestamp() > xact_start + interval '1500ms'`;
    await expect
      .poll(async () => hasEnded || (await run(url, late))[0], { timeout: 60_000 })
      .toSatisfy((found) => found === true || found === '[{"count":1}]');
    await holder.query("commit");
    await holder.end();
    expect(await migrated).toMatchObject({ code: 0, stderr: "" });
  });

  test("whose tables another user has made serves a user who may only read and change rows", async () => {
    const url = await postgres!.createDatabase();
    await (await openStore(url))[Symbol.asyncDispose]();
    expect(await runBatch(await clerkOf(url))).toBe("finalizing");
  });

  test("whose user lacks a right says which one to a command of an operator", async () => {
    const url = await postgres!.createDatabase();
    const clerk = await clerkOf(url);
    await run(url, `revoke insert on api_keys from ${new URL(clerk).username}`);
    using folder = temporaryFolder("batchd-rights-");
    const args = ["keys", "create", "--name", "late", "--data-dir", folder.path];
    const { code, stderr } = await runCommand(args, { BATCHD_DATABASE_URL: clerk });
    expect([code, stderr]).toEqual([
      1,
      expect.stringMatching(/^batchd: .*\(42501\): permission denied for table api_keys$/m),
    ]);
  });

  test("whose user lacks a right says which one to a server that starts", async () => {
    const url = await postgres!.createDatabase();
    const clerk = await clerkOf(url);
    await run(url, `revoke select on installation from ${new URL(clerk).username}`);
    using folder = temporaryFolder("batchd-rights-");
    const args = ["serve", "--port", "0", "--data-dir", folder.path];
    const { code, stderr } = await runCommand(args, { BATCHD_DATABASE_URL: clerk });
    expect([code, stderr]).toEqual([
      1,
      expect.stringMatching(/^batchd: cannot open .*: permission denied for table installation$/m),
    ]);
  });

  test.each(["public", "app"])(
    "whose user may make no tables in the schema %s tells a server that starts what to grant",
    async (schema) => {
      const url = await postgres!.createEmptyDatabase();
      const clerk = await clerkOf(url);
      const ours = `alter database ${nameOf(url)} set search_path = '${schema}'`;
      const usage = `grant usage on schema ${schema} to ${new URL(clerk).username}`;
      await run(url, `create schema if not exists ${schema}`, ours, usage);
      using folder = temporaryFolder("batchd-rights-");
      const args = ["serve", "--port", "0", "--data-dir", folder.path];
      const { code, stderr } = await runCommand(args, { BATCHD_DATABASE_URL: clerk });
      expect([code, stderr]).toEqual([
        1,
        expect.stringMatching(
          `permission denied for schema ${schema}\\. .* \`grant create, usage on schema ${schema}\` `,
        ),
      ]);
    },
  );
});
