/** Servers of which some cannot write their journals. */
import { describe, expect, test } from "vitest";
import { JournalHealth } from "../../../src/engine/journal/journal-health.ts";
import { FakeClock } from "../../support/fake-clock.ts";
import { expectEveryLineOnce, Fleet, type Member, submit } from "../../support/fleet.ts";
import { forAllTests } from "../../support/for-all-tests.ts";
import { sharePostgres } from "../../support/postgres.ts";
import { startS3Proxy } from "../../support/s3-proxy.ts";
import { hasS3Server, newPrefix, startS3Server } from "../../support/s3-server.ts";

/** They are one chunk, so that one worker has all of them. */
const LINES = 40;

const postgres = forAllTests(
  hasS3Server() ? await sharePostgres("journals that some servers cannot write") : null,
);
const s3 = forAllTests(postgres === null ? null : await startS3Server());

describe.skipIf(s3 === null)("on PostgreSQL and a bucket", () => {
  test("what a worker has that alone is cut off from the bucket goes to another one, which does all new work, and no line is lost or doubled", async () => {
    const storage = s3!.storage({ prefix: newPrefix(), timeout_seconds: 1 });
    await using fleet = new Fleet({ databaseUrl: await postgres!.createDatabase(), storage });
    const start = async () => {
      const proxy = await startS3Proxy(s3!.url);
      const config = { storage: { ...storage, endpoint: proxy.url } };
      return { ...(await fleet.worker({ config })), proxy };
    };
    const api = await fleet.api();
    const workers = await Promise.all([start(), start()]);
    for (const { upstream } of workers) upstream.hold();
    const id = await submit(api, LINES);
    const holder = await Promise.any(
      workers.map((worker) => worker.upstream.reached(1).then(() => worker)),
    );
    const [other] = workers.filter((worker) => worker !== holder);

    holder.proxy.trouble = { kind: "reset" };
    for (const { upstream } of workers) upstream.release();
    await holder.batchd.logged("journal.write_failed");
    expect((await fetch(`${holder.url}/ready`)).status).toBe(503);
    // The other one has nothing to write, and is asked by no load balancer whether it can.
    await holder.batchd.logged("chunk.given_away");
    const claimedCount = await batchesClaimedBy(holder);
    const later = await Promise.all(Array.from({ length: 6 }, () => submit(api, 1)));
    for (const each of later) await expectEveryLineOnce(api, each, 1);
    expect(await batchesClaimedBy(holder)).toBe(claimedCount);

    holder.proxy.trouble = null;
    await expectEveryLineOnce(api, id, LINES);
    expect(other!.upstream.total).toBe(LINES + later.length);
    for (const { proxy } of workers) await proxy[Symbol.asyncDispose]();
  });
});

/** Returns how often this worker has claimed a batch to validate or to finalize it. */
async function batchesClaimedBy({ url }: Member): Promise<number> {
  const metrics = await (await fetch(`${url}/metrics`)).text();
  const series = /^batchd_lease_changes_total\{.*kind="batch",change="claimed".*\} (\d+)$/m;
  return Number(series.exec(metrics)?.[1] ?? 0);
}

/** A worker with a journal that cannot be written, beside another one that writes all the while. */
function failing() {
  const clock = new FakeClock();
  const place = { canWrite: false, lookCount: 0 };
  const blobs = {
    ping: async () => {
      place.lookCount++;
      if (!place.canWrite) throw new Error("cut off");
    },
  };
  const other = { canWrite: true, writableAtMs: 0 };
  const fleet = {
    get nowMs() {
      return clock.nowMs();
    },
    workers: [other],
  };
  const health = new JournalHealth({ blobs, clock, fleet, patienceMs: 10_000 });
  const journal = {};
  health.noteFailure(journal);
  const pass = (ms: number) => {
    clock.advance(ms);
    other.writableAtMs = clock.nowMs();
  };
  return { health, journal, clock, pass, place };
}

test("a worker gives no chunk away in an outage for all, also where another one could write for a moment longer", async () => {
  const { health, journal, clock, pass } = failing();
  clock.advance(600_000);
  expect(await health.givesAway(journal)).toBe(false);
  pass(1_000);
  expect(await health.givesAway(journal)).toBe(false);
  clock.advance(600_000);
  expect(await health.givesAway(journal)).toBe(false);
});

test("a worker that can write, and not this journal, gives no chunk away: the others would pay for answers that they cannot keep either", async () => {
  const { health, journal, pass, place } = failing();
  place.canWrite = true;
  pass(1_000);
  expect(await health.givesAway(journal)).toBe(false);
  pass(11_000);
  expect(await health.givesAway(journal)).toBe(false);
  place.canWrite = false;
  expect(await health.givesAway(journal)).toBe(true);
});

test("a worker that has given a chunk away takes none until it can write again, and looks for that every ten seconds", async () => {
  const { health, journal, pass, place } = failing();
  pass(1_000);
  expect(await health.givesAway(journal)).toBe(false);
  pass(11_000);
  expect(await health.givesAway(journal)).toBe(true);
  health.forget(journal);

  place.lookCount = 0;
  pass(9_000);
  expect([await health.look(), place.lookCount]).toEqual([false, 0]);
  pass(1_000);
  expect([await health.look(), place.lookCount]).toEqual([false, 1]);
  place.canWrite = true;
  pass(9_000);
  expect([await health.look(), place.lookCount]).toEqual([false, 1]);
  pass(1_000);
  expect([await health.look(), place.lookCount]).toEqual([true, 2]);
  expect([await health.look(), place.lookCount]).toEqual([true, 2]);
});
