/** Answers that take more than their estimates, in a batch with a budget and in a project with quotas. */
import { describe, expect, test } from "vitest";
import type { BatchObject } from "../../src/contract/batch.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { sharePostgres } from "../support/postgres.ts";
import { ask, configWith, create, startProjectServers, upload } from "../support/projects.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

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

test("a batch that is over its budget with its last lines under way is not paused, as none is left to go out", async () => {
  await using upstream = await startUpstream();
  const clock = new FakeClock();
  const upstreams = [{ name: "only", base_url: upstream.url, models: ["*"] }];
  await using service = await startTestService({
    clock,
    config: configWith({}, { prices, upstreams }),
  });
  const { url, events } = service;
  const gate = Promise.withResolvers<void>();
  upstream.answers = async () => {
    if (upstream.total > 1) await gate.promise;
    return { body: { object: "chat.completion", choices: [], usage: ANSWER } };
  };
  const file = (await upload(url, `${chatLines(3).join("\n")}\n`)).body.id as string;
  const batch = (await create(url, file, { x_batchd: { budget: "5000" } })).body.id as string;
  const look = async () => (await ask(url, `batches/${batch}`)).body as unknown as BatchObject;
  await expect.poll(() => upstream.total).toBe(3);
  // A chunk whose lines do not move gives back what it does not need within two looks.
  const doneAfterMore = async () => {
    clock.advance(1_000);
    return (await look()).request_counts.completed;
  };
  await expect.poll(doneAfterMore).toBe(1);
  for (let second = 0; second < 6; second++) expect(await doneAfterMore()).toBe(1);
  gate.resolve();
  const hasEnded = async () => {
    await doneAfterMore();
    return (await look()).status;
  };
  await expect.poll(hasEnded).toBe("completed");
  expect(events.count("batch.paused")).toBe(0);
});
