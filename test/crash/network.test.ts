/** Servers that are cut off from PostgreSQL, while others are not, and servers whose clocks are wrong. */
import { fileURLToPath } from "node:url";
import { afterAll, describe, expect, test } from "vitest";
import { answeredLines, Fleet, type Member, numbersTo, submit } from "../support/fleet.ts";
import { startPostgres } from "../support/postgres.ts";
import { Scrape } from "../support/prometheus.ts";
import { TcpProxy } from "../support/tcp-proxy.ts";

const LINES = 3_000;
/** On a machine that is busy with other work. */
const TIME_LIMIT_MS = 180_000;
const SHIFT_MS = 5 * 60_000;

const postgres = await startPostgres("servers that are cut off from PostgreSQL");
afterAll(() => postgres?.[Symbol.asyncDispose]());

const eventually = (value: () => Promise<unknown>) =>
  expect.poll(value, { timeout: TIME_LIMIT_MS });

const completed = ({ openai }: Member, id: string) =>
  eventually(async () => (await openai.batches.retrieve(id)).status).toBe("completed");

async function expectEveryLineOnce(api: Member, id: string): Promise<void> {
  await completed(api, id);
  const { request_counts } = await api.openai.batches.retrieve(id);
  expect(request_counts).toEqual({ total: LINES, completed: LINES, failed: 0 });
  expect(await answeredLines(api, id)).toEqual(numbersTo(LINES));
}

const metricsOf = async ({ url }: Member) =>
  new Scrape(await (await fetch(`${url}/metrics`)).text());

const lostChunks = async (member: Member) =>
  (await metricsOf(member)).value("batchd_lease_changes_total", { kind: "chunk", change: "lost" });

async function refusalOf({ url }: Member): Promise<unknown> {
  const answer = await fetch(`${url}/v1/batches`);
  const { error } = (await answer.json()) as { error: Record<string, unknown> };
  return { status: answer.status, retryAfter: answer.headers.get("retry-after"), ...error };
}

const UNAVAILABLE = {
  ...{ status: 503, retryAfter: "2", type: "server_error", param: null, code: null },
  message: expect.stringContaining("cannot reach its database"),
};

const clockWrongBy = (ms: number) => ({
  NODE_OPTIONS: `--import ${fileURLToPath(new URL("../support/fixtures/shifted-clock.ts", import.meta.url))}`,
  CLOCK_SHIFT_MS: String(ms),
});

describe.skipIf(postgres === null)("on PostgreSQL", () => {
  test.each(["cut", "silent"] as const)(
    "a network that is %s between some servers and the database: they wait, the others go on, and nothing is doubled",
    async (network) => {
      const databaseUrl = await postgres!.createDatabase();
      const proxy = await TcpProxy.before(databaseUrl);
      const behind = { databaseUrl: proxy.urlOf(databaseUrl) };
      await using fleet = new Fleet({ databaseUrl });
      const [api, cutOffApi] = await Promise.all([fleet.api(), fleet.api(behind)]);
      const [cutOff, other] = await Promise.all([fleet.worker(behind), fleet.worker()]);
      const id = await submit(cutOffApi, LINES, 5);
      await Promise.all([cutOff, other].map(({ upstream }) => upstream.reachedLines(400)));
      cutOff.upstream.hold();
      await cutOff.upstream.reachedLines(cutOff.upstream.total + 1);
      proxy.network = network;
      const refusal = refusalOf(cutOffApi);
      await expectEveryLineOnce(api, id);
      expect(await refusal).toEqual(UNAVAILABLE);
      expect((await fetch(`${cutOff.url}/ready`)).status).toBe(503);

      const slots = async () =>
        (await metricsOf(cutOff)).value("batchd_upstream_concurrency_limit", { target: "model" });
      await eventually(slots).toBe(0);
      const sent = other.upstream.total + cutOff.upstream.total;

      cutOff.upstream.release();
      proxy.network = "well";
      await eventually(async () => (await fetch(`${cutOff.url}/ready`)).status).toBe(200);
      await eventually(() => lostChunks(cutOff)).toBeGreaterThan(0);
      await expectEveryLineOnce(cutOffApi, id);
      expect(other.upstream.total + cutOff.upstream.total).toBe(sent);
    },
    TIME_LIMIT_MS,
  );

  test(
    "clocks that are ten minutes apart change nothing: no lease is lost before its time, and none is kept after it",
    async () => {
      await using fleet = new Fleet({ databaseUrl: await postgres!.createDatabase() });
      const api = await fleet.api({ env: clockWrongBy(-SHIFT_MS) });
      const [ahead, behind] = await Promise.all([
        fleet.worker({ env: clockWrongBy(SHIFT_MS) }),
        fleet.worker({ env: clockWrongBy(-SHIFT_MS) }),
      ]);
      const id = await submit(api, LINES, 50);
      await Promise.all([ahead, behind].map(({ upstream }) => upstream.reachedLines(100)));
      await expectEveryLineOnce(api, id);
      for (const worker of [ahead, behind]) expect(await lostChunks(worker)).toBe(0);
      expect(ahead.upstream.total + behind.upstream.total).toBe(LINES);

      // The one that is ahead must not wait longer for the lease of the one that is behind.
      const next = await submit(api, LINES, 50);
      await behind.upstream.reached(behind.upstream.total + 50);
      await behind.batchd.kill();
      await expectEveryLineOnce(api, next);
    },
    TIME_LIMIT_MS,
  );
});
