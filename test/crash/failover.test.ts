/** A database that takes no writes for a while, as a standby, and whose sessions of that time never will. */
import { Client } from "pg";
import { describe, expect, test } from "vitest";
import { answeredLines, Fleet, type Member, numbersTo, submit } from "../support/fleet.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { sharePostgres } from "../support/postgres.ts";

const LINES = 600;
const ANSWERED = 200;
/** A call is tried more often than a process has connections, so that one call may find all of them useless. */
const POOL_SIZE = 2;

const postgres = forAllTests(await sharePostgres("servers on a database that takes no writes"));

async function run(databaseUrl: string, ...statements: string[]): Promise<void> {
  const client = new Client(databaseUrl);
  await client.connect();
  for (const statement of statements) await client.query(statement);
  await client.end();
}

async function statusOfUpload({ url }: Member): Promise<number> {
  const { status } = await fetch(`${url}/v1/uploads`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      filename: "input.jsonl",
      purpose: "batch",
      bytes: 10,
      mime_type: "application/jsonl",
    }),
  });
  return status;
}

describe.skipIf(postgres === null)("on PostgreSQL", () => {
  test("connections to a standby are left as soon as there is a database that takes writes", async () => {
    const databaseUrl = await postgres!.createDatabase();
    const name = new URL(databaseUrl).pathname.slice(1);
    const config = { database: { pool_size: POOL_SIZE } };
    await using fleet = new Fleet({ databaseUrl, config });
    const [api, worker] = await Promise.all([fleet.api(), fleet.worker()]);
    worker.upstream.holdAfter(ANSWERED);
    const id = await submit(api, LINES);
    await worker.upstream.reachedLines(ANSWERED + 1);

    // The setting is read when a session begins, and stays with it.
    await run(
      databaseUrl,
      `alter database ${name} set default_transaction_read_only = on`,
      `select pg_terminate_backend(pid) from pg_stat_activity
       where datname = current_database() and pid <> pg_backend_pid()`,
    );
    await expect.poll(() => statusOfUpload(api)).toBe(503);
    await run(
      databaseUrl,
      "set default_transaction_read_only = off",
      `alter database ${name} reset default_transaction_read_only`,
    );
    expect(await statusOfUpload(api)).toBe(200);

    worker.upstream.release();
    await expect.poll(async () => (await api.openai.batches.retrieve(id)).status).toBe("completed");
    expect(await answeredLines(api, id)).toEqual(numbersTo(LINES));
  });
});
