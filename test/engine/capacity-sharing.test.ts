/** Workers that share one upstream, each a process, on one PostgreSQL. */
import { afterAll, describe, expect, test } from "vitest";
import { answeredLines, Fleet, numbersTo, submit, type Worker } from "../support/fleet.ts";
import { sharePostgres } from "../support/postgres.ts";
import { Scrape } from "../support/prometheus.ts";

const LIMIT = 8;

const postgres = await sharePostgres("the shares of replicas");
afterAll(async () => {
  await postgres?.[Symbol.asyncDispose]();
});

async function slotCountOf({ url }: Worker): Promise<number> {
  const scrape = new Scrape(await (await fetch(`${url}/metrics`)).text());
  return scrape.value("batchd_upstream_concurrency_limit", { target: "model" });
}

const eventually = (value: () => Promise<unknown>) => expect.poll(value);

describe.skipIf(postgres === null)("max_concurrency", () => {
  test("holds for all workers together, and goes to those that are there", async () => {
    await using fleet = new Fleet({ databaseUrl: await postgres!.createDatabase() });
    const upstream = await fleet.upstream();
    const fields = { max_concurrency: LIMIT, min_concurrency: LIMIT, interactive_reserve: 0 };
    const start = () => fleet.worker({ upstream, fields });
    const api = await fleet.api();
    const first = await start();
    await eventually(() => slotCountOf(first)).toBe(LIMIT);
    const id = await submit(api, 3_000, 60);
    await upstream.reachedLines(20);
    const second = await start();
    const both = async () => [await slotCountOf(first), await slotCountOf(second)];
    await eventually(both).toEqual([LIMIT / 2, LIMIT / 2]);
    await first.batchd.kill();
    await eventually(() => slotCountOf(second)).toBe(LIMIT);
    await eventually(async () => (await api.openai.batches.retrieve(id)).status).toBe("completed");
    expect(upstream.maxInFlight).toBe(LIMIT);
    expect(await answeredLines(api, id)).toEqual(numbersTo(3_000));
  });
});
