/** Answers that take more than their estimates, in a batch with a budget and in a project with quotas. */
import { describe, expect, test } from "vitest";
import type { BatchObject } from "../../src/contract/batch.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { sharePostgres } from "../support/postgres.ts";
import { ask, configWith, create, startProjectServers, upload } from "../support/projects.ts";
import { chatLines } from "../support/service.ts";

const postgres = forAllTests(await sharePostgres("answers that take more than their estimates"));

/** An answer without a limit is estimated at 256 tokens. */
const prices = [{ model: "*", output: "1", per: 1, currency: "EUR" }];
const ANSWER = { prompt_tokens: 1, completion_tokens: 10_000 };
const FIRST = 20;
/** It is enough for the first answers, and for 780 estimates. */
const LIMIT = 200_000;
const LINES = 2_000;

describe.each([
  ["one server with SQLite", null, true],
  ["two servers with PostgreSQL", postgres, postgres !== null],
] as const)("on %s", (_, database, canRun) => {
  test.skipIf(!canRun).each([
    ["budget", { budget: String(LIMIT) }, {}],
    ["cost_per_month", {}, { cost_per_month: String(LIMIT) }],
    ["tokens_per_day", {}, { tokens_per_day: LIMIT }],
  ])(
    "the lines behind long answers do not go out on what %s had room for before them",
    async (reason, x_batchd, quotas) => {
      await using servers = await startProjectServers(database, configWith({ quotas }, { prices }));
      const { urls, services, upstream } = servers;
      const [url] = urls as [string];
      const gate = Promise.withResolvers<void>();
      upstream.answers = async () => {
        if (upstream.total > FIRST) await gate.promise;
        return { body: { object: "chat.completion", choices: [], usage: ANSWER } };
      };
      const file = (await upload(url, `${chatLines(LINES).join("\n")}\n`)).body.id as string;
      const batch = (await create(url, file, { x_batchd })).body.id as string;
      const look = async () => (await ask(url, `batches/${batch}`)).body as unknown as BatchObject;
      await expect.poll(async () => (await look()).request_counts.completed).toBe(FIRST);
      const underWay = upstream.total;
      gate.resolve();
      const paused = services.map(({ events }) => events.reached("batch.paused", { batch }));
      await Promise.race(paused);
      expect((await look()).x_batchd.paused?.reason).toBe(reason);
      // The other server learns from its own first answers.
      expect(upstream.total).toBeLessThan(underWay + 10);
    },
  );
});
