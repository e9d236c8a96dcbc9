/** The date by which all replicas go, whatever date a machine shows: processes on one PostgreSQL. */
import { describe, expect, test } from "vitest";
import { Fleet } from "../../../src/engine/fleet/fleet.ts";
import { encodeReport } from "../../../src/engine/fleet/replica-report.ts";
import { createBatch } from "../../support/batches.ts";
import { FakeClock } from "../../support/fake-clock.ts";
import { forAllTests } from "../../support/for-all-tests.ts";
import { sharePostgres } from "../../support/postgres.ts";
import { startReceiver } from "../../support/receiver.ts";
import { chatLines, startTestService } from "../../support/service.ts";
import { startUpstream } from "../../support/upstream.ts";
import { clockAhead } from "../../support/wrong-clock.ts";

const postgres = forAllTests(await sharePostgres("the clock of a fleet"));

test.skipIf(postgres === null)(
  "a machine whose date jumps beyond the window goes on sending: the window ends by the clock of the store",
  async () => {
    await using upstream = await startUpstream();
    let aheadMs = 0;
    const clock = clockAhead(() => aheadMs);
    await using service = await startTestService({
      clock,
      config: {
        upstreams: [{ name: "one", base_url: upstream.url, models: ["*"], max_concurrency: 4 }],
        database_url: await postgres!.createDatabase(),
      },
    });
    upstream.hold();
    const { id } = await service.submit(chatLines(50));
    await upstream.reached(4);
    aheadMs = 2 * 24 * 60 * 60 * 1000;
    upstream.release();
    expect(await service.ended(id)).toMatchObject({
      status: "completed",
      request_counts: { total: 50, completed: 50 },
    });
  },
);

describe.skipIf(postgres === null).each([
  { name: "back", stepMs: -2 * 24 * 60 * 60 * 1000 },
  { name: "forward", stepMs: 4 * 24 * 60 * 60 * 1000 },
])("at the moment at which the date of a machine is set $name", ({ stepMs }) => {
  test("files and batches are dated by the store, and an event is neither misdated nor given up", async () => {
    await using upstream = await startUpstream();
    await using receiver = await startReceiver();
    let aheadMs = 0;
    const clock = clockAhead(() => aheadMs);
    await using service = await startTestService({
      clock,
      config: {
        upstreams: [{ name: "one", base_url: upstream.url, models: ["*"] }],
        database_url: await postgres!.createDatabase(),
        webhooks: {
          endpoints: [{ name: "one", url: receiver.url, secret: "a key of the receiver" }],
          allow_private_hosts: ["127.0.0.1"],
        },
      },
    });
    receiver.reactNext({ status: 500 });
    // The other way and back again, so that the date is wrong at most moments.
    for (const ms of [stepMs, 0, stepMs]) {
      aheadMs = ms;
      const input = await service.openai.files.create({
        file: new File([`${chatLines(1).join("\n")}\n`], "input.jsonl"),
        purpose: "batch",
        expires_after: { anchor: "created_at", seconds: 3_600 },
      });
      const created = await createBatch(service.openai, input.id);
      const nowSeconds = Date.now() / 1_000;
      for (const { created_at } of [input, created]) {
        expect(Math.abs(created_at - nowSeconds)).toBeLessThan(60);
      }
      expect((await service.ended(created.id)).status).toBe("completed");
      const ends = ["webhook.delivered", "webhook.given_up", "webhook.attempt_failed"];
      await Promise.race(ends.map((end) => service.events.reached(end, { batch: created.id })));
    }
    expect(service.events.count("webhook.given_up")).toBe(0);
    for (const { headers } of receiver.seen) {
      expect(Math.abs(Number(headers["webhook-timestamp"]) - Date.now() / 1_000)).toBeLessThan(300);
    }
  });
});

const WORKER = encodeReport({
  isWorker: true,
  canWrite: true,
  targets: [],
  routes: [],
  commonFailures: [],
});

test("a replica that was cut off from the store among others claims nothing until they have had time to renew", () => {
  const clock = new FakeClock();
  const fleet = new Fleet(clock);
  const renewal = { peers: [{ owner: "other", report: WORKER }], isHousekeeper: false, nowMs: 0 };
  expect(fleet.claimsInMs).toBe(0);
  fleet.renewed(renewal);
  expect(fleet.claimsInMs).toBe(0);

  fleet.lost();
  expect(fleet.claimsInMs).toBeGreaterThan(0);
  clock.advance(60_000);
  expect(fleet.claimsInMs).toBeGreaterThan(0);
  // The claim of the other one has run out as well.
  fleet.renewed({ ...renewal, peers: [] });
  expect(fleet.claimsInMs).toBe(9_000);
  clock.advance(3_000);
  fleet.renewed(renewal);
  expect(fleet.claimsInMs).toBe(6_000);
  clock.advance(6_000);
  expect(fleet.claimsInMs).toBe(0);
});

test("a replica whose renewals are late again and again claims in between", () => {
  const clock = new FakeClock();
  const fleet = new Fleet(clock);
  const renewal = { peers: [{ owner: "other", report: WORKER }], isHousekeeper: false, nowMs: 0 };
  fleet.renewed(renewal);
  const waits: number[] = [];
  // Each takes 6.5 s and begins 3 s after the end of the former one, whose part runs out 9 s after its beginning.
  for (let i = 0; i < 4; i++) {
    clock.advance(2_500);
    waits.push(fleet.claimsInMs);
    fleet.lost();
    clock.advance(7_000);
    fleet.renewed(renewal);
  }
  expect(waits.map((ms) => ms === 0)).toEqual([true, false, true, false]);
});

test("a lone server that was cut off from its store claims its work as soon as it is back", () => {
  const fleet = new Fleet(new FakeClock());
  const alone = { peers: [], isHousekeeper: true, nowMs: 0 };
  fleet.renewed(alone);
  fleet.lost();
  fleet.renewed(alone);
  expect(fleet.claimsInMs).toBe(0);
});
