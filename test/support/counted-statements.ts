/** A store on PostgreSQL whose statements are counted. */
import { Client } from "pg";
import { systemClock } from "../../src/clock.ts";
import { openPostgresStore } from "../../src/store/postgres/store.ts";
import { startPostgres } from "./postgres.ts";

/** Starts a server that counts the statements it runs. */
export const startCountingPostgres = (tests: string, settings: readonly string[] = []) =>
  startPostgres(tests, {
    settings: ["shared_preload_libraries=pg_stat_statements", ...settings],
  });

type CountingPostgres = NonNullable<Awaited<ReturnType<typeof startCountingPostgres>>>;

/** Counts statements where they are sent, and where they are run. */
export async function openCountedStore(postgres: CountingPostgres, { poolSize = 2 } = {}) {
  const url = await postgres.createDatabase();
  let sentCount = 0;
  const onStatements = (count: number) => {
    sentCount += count;
  };
  // The dates of the builders are long over by the clock of the database.
  const nowMs = () => Date.UTC(2026, 0, 5, 8);
  const opened = await openPostgresStore({
    url,
    poolSize,
    listens: false,
    clock: systemClock,
    nowMs,
    onStatements,
  });
  if (!opened.ok) throw new Error(opened.problem);
  const { store } = opened;
  const client = new Client(url);
  await client.connect();
  await client.query("create extension pg_stat_statements");
  return {
    store,
    query: (text: string) => client.query(text),
    /** Returns the statements of `work`, as the process and as the server count them. */
    countOf: async (work: () => Promise<unknown>) => {
      await client.query("select pg_stat_statements_reset()");
      const before = sentCount;
      await work();
      const { rows } = await client.query<{ calls: string; pages: string }>(
        `select sum(calls) as calls, sum(shared_blks_hit + shared_blks_read) as pages from pg_stat_statements
         where dbid = (select oid from pg_database where datname = current_database())
           and query not like '%pg_stat_statements%'`,
      );
      const { calls = 0, pages = 0 } = rows[0] ?? {};
      return { sent: sentCount - before, run: Number(calls), pages: Number(pages) };
    },
    async [Symbol.asyncDispose]() {
      await client.end();
      await store.close();
    },
  };
}
