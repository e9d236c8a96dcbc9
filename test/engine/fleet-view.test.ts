/** What replicas report to each other decides what every one of them shows of a batch. Processes on one PostgreSQL. */
import { describe, expect, test } from "vitest";
import type { BatchObject } from "../../src/contract/batch.ts";
import { expectEveryLineOnce, Fleet, type Member, submit } from "../support/fleet.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { clerkOf, query, sharePostgres } from "../support/postgres.ts";
import type { TestUpstream } from "../support/upstream.ts";

const MEASURED_SECONDS = 5;
/** A look asks every server twice. */
const SELDOM = { interval: 250 };

const postgres = forAllTests(await sharePostgres("the reports of replicas"));

type Extension = BatchObject["x_batchd"];

const extensionAt = async ({ openai }: Member, id: string): Promise<Extension> =>
  ((await openai.batches.retrieve(id)) as unknown as BatchObject).x_batchd;

const listedAt = async ({ openai }: Member, id: string): Promise<Extension | undefined> =>
  ((await openai.batches.list()).data as unknown as BatchObject[]).find((each) => each.id === id)
    ?.x_batchd;

/** Resolves to what all of them show, once it is as wanted. */
async function shownAlike(
  members: readonly Member[],
  id: string,
  isWanted: (shown: Extension) => boolean,
): Promise<Extension> {
  let shown: Extension | undefined;
  const look = async () => {
    const [first, ...others] = await Promise.all([
      ...members.map((each) => extensionAt(each, id)),
      ...members.map((each) => listedAt(each, id)),
    ]);
    shown = first;
    // Two looks may have a change between them.
    const isAlike = others.every((each) => JSON.stringify(each) === JSON.stringify(first));
    return isAlike && shown !== undefined && isWanted(shown);
  };
  await expect.poll(look, SELDOM).toBe(true);
  return shown!;
}

/**
 * Measures how long the lines that are left take at the speed of the last seconds, which is lower on a busy machine. It
 * returns NaN until it has seen some seconds.
 */
function secondsLeftAt(upstream: TestUpstream, lineCount: number): () => number {
  const seen: { readonly atSeconds: number; readonly total: number }[] = [];
  return () => {
    const atSeconds = performance.now() / 1000;
    const { total } = upstream;
    seen.push({ atSeconds, total });
    const before = seen.findLast((each) => atSeconds - each.atSeconds > MEASURED_SECONDS);
    if (before === undefined) return Number.NaN;
    const linesPerSecond = (total - before.total) / (atSeconds - before.atSeconds);
    return (lineCount - total) / linesPerSecond;
  };
}

describe.skipIf(postgres === null)("x_batchd", () => {
  test("shows the same at every API server: the end and the place in the queue", async () => {
    await using fleet = new Fleet({ databaseUrl: await postgres!.createDatabase() });
    const upstream = await fleet.upstream();
    const fields = { max_concurrency: 4, min_concurrency: 4, interactive_reserve: 0 };
    const apis = await Promise.all([fleet.api(), fleet.api()]);
    await Promise.all([fleet.worker({ upstream, fields }), fleet.worker({ upstream, fields })]);
    const lineCount = 6_000;
    const id = await submit(apis[0], lineCount, 100);
    const { waiting, queue_position } = await shownAlike(apis, id, ({ eta }) => eta !== null);
    expect([waiting, queue_position]).toEqual([null, 0]);
    // Both workers together decide the end. One alone has half of the lines a second.
    const secondsLeft = secondsLeftAt(upstream, lineCount);
    const ratio = async () => {
      const eta = ((await extensionAt(apis[1], id)).eta ?? 0) - Date.now() / 1000;
      return eta / secondsLeft();
    };
    await expect.poll(ratio, SELDOM).toBeGreaterThan(0.7);
    await expect.poll(ratio, SELDOM).toBeLessThan(1.6);
  });

  test("says why a batch waits, also at a server that has no upstream, and when no replica works at all", async () => {
    await using fleet = new Fleet({ databaseUrl: await postgres!.createDatabase() });
    const api = await fleet.api();
    const down = { base_url: "http://127.0.0.1:9/v1" };
    const worker = await fleet.worker({ fields: down });
    const id = await submit(api, 3);
    const shown = await shownAlike([api], id, (each) => each.waiting?.reason === "upstream_down");
    expect([shown.waiting?.upstream_error, shown.at_risk]).toEqual(["connection refused", true]);
    // A replica that takes over goes on counting.
    await worker.batchd.kill();
    const alone = await shownAlike([api], id, (each) => each.waiting?.reason === "not_served");
    expect(alone.waiting?.since).toBeGreaterThanOrEqual(shown.waiting!.since);
  });

  test("says of a batch whose only worker was killed that it waits for the next try", async () => {
    const config = { engine: { lease_seconds: 60 } };
    await using fleet = new Fleet({ databaseUrl: await postgres!.createDatabase(), config });
    const api = await fleet.api();
    const killed = await fleet.worker();
    killed.upstream.hold();
    const id = await submit(api, 1);
    await killed.upstream.reached(1);
    await fleet.worker();
    await killed.batchd.kill();
    await shownAlike([api], id, ({ waiting }) => waiting?.reason === "retrying");
  });

  test("says of a batch whose chunk a worker holds that it waits for the slots of another one", async () => {
    await using fleet = new Fleet({ databaseUrl: await postgres!.createDatabase() });
    const upstream = await fleet.upstream();
    upstream.hold();
    const fields = { max_concurrency: 2, min_concurrency: 2, interactive_reserve: 0 };
    const api = await fleet.api();
    await Promise.all([fleet.worker({ upstream, fields }), fleet.worker({ upstream, fields })]);
    const first = await submit(api, 600);
    await upstream.reached(2);
    const id = await submit(api, 600);
    await shownAlike([api], id, ({ waiting }) => waiting?.reason === "no_room");
    expect((await extensionAt(api, first)).waiting).toBeNull();
  });

  test("says that answers cannot be kept also while the database keeps no forecast that says so", async () => {
    const owned = await postgres!.createDatabase();
    const databaseUrl = await clerkOf(owned);
    const { username } = new URL(databaseUrl);
    await using fleet = new Fleet({ databaseUrl });
    const [api, { upstream }] = await Promise.all([fleet.api(), fleet.worker()]);
    upstream.hold();
    const id = await submit(api, 3);
    await upstream.reached(3);
    // As on a full disk: what needs no more room, such as the renewals of replicas, goes on.
    await query(owned, `revoke insert, update on segments, forecasts from ${username}`);
    upstream.release();
    const isSaid = ({ waiting }: Extension) => waiting?.reason === "journal_not_writable";
    const { at_risk } = await shownAlike([api], id, isSaid);
    expect(at_risk).toBe(true);
    await query(owned, `grant insert, update on segments, forecasts to ${username}`);
    await expectEveryLineOnce(api, id, 3);
  });
});
