/** A fleet behind a pooler in transaction mode, which gives each transaction another connection to PostgreSQL. */
import { describe, expect, test } from "vitest";
import { answeredLines, Fleet, numbersTo, submit } from "../support/fleet.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { hasPgBouncer, startPgBouncer } from "../support/pgbouncer.ts";
import { sharePostgres } from "../support/postgres.ts";

const postgres = forAllTests(
  hasPgBouncer() ? await sharePostgres("the tests behind PgBouncer") : null,
);

const LINES = 1_500;
/** They are fewer than the pool of one process has. */
const SERVER_CONNECTIONS = 3;

describe.skipIf(postgres === null)("behind PgBouncer in transaction mode", () => {
  // LISTEN does not work through it. A server that listens all the same must not suffer.
  test.each([{ listen: false }, { listen: true }])(
    "a fleet shares three connections, and answers each line once ($listen)",
    async ({ listen }) => {
      await using pooler = await startPgBouncer(
        await postgres!.createDatabase(),
        SERVER_CONNECTIONS,
      );
      await using fleet = new Fleet({
        databaseUrl: pooler.url,
        config: { database: { listen, pool_size: 10 } },
      });
      const api = await fleet.api();
      const upstream = await fleet.upstream();
      await Promise.all([fleet.worker({ upstream }), fleet.worker({ upstream })]);
      const id = await submit(api, LINES);
      await expect
        .poll(async () => (await api.openai.batches.retrieve(id)).status)
        .toBe("completed");
      expect(await answeredLines(api, id)).toEqual(numbersTo(LINES));
      expect(await pooler.serverConnectionCount()).toBeLessThanOrEqual(SERVER_CONNECTIONS);
    },
  );
});
