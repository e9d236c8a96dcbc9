/** Quotas while a server has lost its way to PostgreSQL for longer than its leases last. Real processes. */
import { expect, test } from "vitest";
import type { BatchObject } from "../../src/contract/batch.ts";
import { submitLines } from "../support/batches.ts";
import { Fleet, type Member } from "../support/fleet.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { query, sharePostgres } from "../support/postgres.ts";
import { chatLine } from "../support/service.ts";
import { TcpProxy } from "../support/tcp-proxy.ts";

const postgres = forAllTests(await sharePostgres("quotas of servers without their database"));

const LIMIT = 50;
/** Each line costs 1, which is its estimate, too. */
const CONFIG = {
  prices: [{ model: "*", input: "0", output: "0", per_request: "1", currency: "USD" }],
  projects: [{ name: "default", quotas: { cost_per_month: String(LIMIT) } }],
};

const look = async ({ openai }: Member, id: string) =>
  (await openai.batches.retrieve(id)) as unknown as BatchObject;

/** Resolves to the id of a batch that runs. Until every server knows the models of all, its model may be unknown. */
async function started(member: Member, model: string): Promise<string> {
  const lines = Array.from({ length: 2 * LIMIT }, (_, n) => chatLine(`line-${n}`, "Hi", { model }));
  for (;;) {
    const { id } = await submitLines(member.openai, lines);
    const status = async () => (await look(member, id)).status;
    await expect.poll(status).not.toBe("validating");
    if ((await status()) === "in_progress") return id;
  }
}

/** Resolves once the lease on the chunk of a batch has run out, by the clock of the database. */
async function leaseRunOut(databaseUrl: string, batchId: string): Promise<void> {
  const over =
    "select lease_expires_at_ms < extract(epoch from clock_timestamp()) * 1000 as over from chunks where batch_id = $1";
  const isOver = async () => (await query(databaseUrl, over, [batchId]))[0]?.["over"];
  await expect.poll(isOver, { timeout: 30_000 }).toBe(true);
}

test.skipIf(postgres === null)(
  "what a server has under way that is cut off never exceeds a quota beside what others use meanwhile",
  async () => {
    const databaseUrl = await postgres!.createDatabase();
    await using fleet = new Fleet({ databaseUrl, config: CONFIG });
    const proxy = await TcpProxy.before(databaseUrl);
    const api = await fleet.api();
    await fleet.worker({ fields: { models: ["near"] } });
    const far = await fleet.worker({
      fields: { models: ["far"] },
      databaseUrl: proxy.urlOf(databaseUrl),
    });
    far.upstream.hold();
    const ofFar = await started(api, "far");
    await far.upstream.reached(4);
    proxy.network = "cut";
    await leaseRunOut(databaseUrl, ofFar);

    const ofNear = await started(api, "near");
    const pauseOf = async (id: string) => (await look(api, id)).x_batchd.paused?.reason ?? null;
    await expect.poll(() => pauseOf(ofNear), { timeout: 60_000 }).toBe("cost_per_month");
    far.upstream.release();
    proxy.network = "well";
    await expect.poll(() => pauseOf(ofFar), { timeout: 60_000 }).toBe("cost_per_month");

    const ended = await Promise.all([ofFar, ofNear].map((id) => look(api, id)));
    expect(ended.map(({ request_counts: { completed } }) => completed)).toEqual([0, LIMIT]);
    expect(ended.map(({ x_batchd: { cost } }) => cost?.so_far)).toEqual(["0", String(LIMIT)]);
  },
);
