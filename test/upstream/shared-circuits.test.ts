/** What one replica finds out about an upstream holds for the others. Processes on one PostgreSQL. */
import { describe, expect, test } from "vitest";
import { CircuitBreaker } from "../../src/upstream/capacity/breaker.ts";
import { circuitsOf, followTarget } from "../../src/upstream/followed-circuits.ts";
import { Holds } from "../../src/upstream/holds.ts";
import { type CircuitView, partIn, takePart } from "../../src/upstream/shared-circuits.ts";
import type { TargetReport } from "../../src/upstream/target-report.ts";
import { Fleet, submit, type Worker } from "../support/fleet.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { GOOD, refusal } from "../support/given.ts";
import { sharePostgres } from "../support/postgres.ts";
import { Scrape } from "../support/prometheus.ts";
import { startUpstream } from "../support/upstream.ts";

const TURN_MS = 10_000;

const postgres = forAllTests(await sharePostgres("the circuits of replicas"));

const NAMES = ["a", "b", "c", "d"];

const aView = (fields: Partial<CircuitView> = {}): CircuitView => ({
  owner: "a",
  nowMs: 0,
  workers: NAMES,
  servedAtMs: 100,
  opened: [{ owner: "b", openedAtMs: 200 }],
  ...fields,
});

describe("of the replicas that have an upstream", () => {
  const probers = (fields: Partial<CircuitView>) =>
    NAMES.filter((owner) => partIn(aView({ ...fields, owner })) === "probe");

  test("one probes at any moment: each that found it down, and in between any of them", () => {
    const opened = ["b", "d"].map((owner) => ({ owner, openedAtMs: 200 }));
    const turns = Array.from({ length: 8 }, (_, i) => probers({ opened, nowMs: i * TURN_MS }));
    expect(turns).toEqual([["b"], ["a"], ["d"], ["b"], ["b"], ["c"], ["d"], ["d"]]);
  });

  test("all go on once one of them is served after the last failure, and when none found it down", () => {
    expect(partIn(aView({ servedAtMs: 201 }))).toBe("serving");
    expect(partIn(aView({ opened: [] }))).toBe("serving");
    expect(probers({ servedAtMs: 199 })).toEqual(["b"]);
  });
});

describe("a circuit that another replica has opened", () => {
  const failure = { kind: "unreachable", detail: "connection refused" } as const;
  const ended = { startedAtMs: 1_500, nowMs: 1_600, random: 0 };

  function following() {
    const breaker = new CircuitBreaker();
    expect(takePart(breaker, "follow", { failure, nowMs: 1_000 })).toBe(true);
    expect([breaker.circuit, breaker.readyAtMs(), breaker.pass(1_000)]).toEqual([
      "open",
      Number.POSITIVE_INFINITY,
      false,
    ]);
    expect([breaker.lastFailure, breaker.isFailing, breaker.isOwn]).toEqual([failure, true, false]);
    return breaker;
  }

  test("lets nothing out, until the target serves a replica", () => {
    const breaker = following();
    expect(takePart(breaker, "serving", { failure: null, nowMs: 1_100 })).toBe(true);
    expect([breaker.circuit, breaker.pass(1_200), breaker.isFailing]).toEqual([
      "closed",
      false,
      false,
    ]);
  });

  test("is in doubt here if it is there, until another failure or an answer says more", () => {
    const breaker = following();
    expect(breaker.isInDoubt).toBe(false);
    breaker.hear(true);
    expect([breaker.isInDoubt, breaker.readyAtMs()]).toEqual([true, Number.POSITIVE_INFINITY]);
    breaker.note("down", ended, failure);
    expect([breaker.isInDoubt, breaker.circuit]).toEqual([false, "open"]);
    breaker.hear(true);
    breaker.note("good", ended, null);
    expect([breaker.isInDoubt, breaker.circuit]).toEqual([false, "closed"]);
  });

  test("lets one probe out when it is the turn of this replica, and one only", () => {
    const breaker = following();
    takePart(breaker, "probe", { failure, nowMs: 1_400 });
    expect([breaker.readyAtMs(), breaker.pass(1_500)]).toEqual([1_400, true]);
    breaker.note("down", ended, failure);
    expect([breaker.isOwn, breaker.readyAtMs()]).toEqual([true, 1_600 + 30_000]);
    breaker.follow(null, 0);
    takePart(breaker, "serving", { failure: null, nowMs: 2_000 });
    // It has found the target down itself, so it asks once before it believes the others.
    expect([breaker.circuit, breaker.readyAtMs()]).toEqual(["open", 2_000]);
  });

  test("resumes when the target serves others, though it had a turn to probe and nothing to probe with", () => {
    const breaker = following();
    takePart(breaker, "probe", { failure, nowMs: 1_400 });
    expect(takePart(breaker, "serving", { failure: null, nowMs: 2_000 })).toBe(true);
    expect([breaker.circuit, breaker.pass(2_100)]).toEqual(["closed", false]);
  });

  test("closes at a good answer to a request that was on its way", () => {
    const breaker = following();
    breaker.note("good", ended, null);
    expect([breaker.circuit, breaker.isFollowing]).toEqual(["closed", false]);
  });
});

test("a replica that cannot connect keeps interactive requests from a target that others only doubt", () => {
  const found = {
    a: { evidence: "down", failure: { kind: "unreachable", detail: "connection refused" } },
    b: { evidence: "doubtful", failure: { kind: "broken", detail: "status 502" } },
  } as const;
  const replicas = (["a", "b"] as const).map((owner) => {
    const breaker = new CircuitBreaker();
    const { evidence, failure } = found[owner];
    const ended = { startedAtMs: 900, nowMs: 1_000, random: 0 };
    for (let i = 0; i < 50; i++) breaker.note(evidence, ended, failure);
    return { owner, circuits: { capacity: { breaker }, holds: new Holds() } };
  });
  const dates = { elapsedMs: 1_100, dateOf: (atMs: number) => atMs };
  for (let renewal = 0; renewal < 4; renewal++) {
    const reports = replicas.map(({ owner, circuits }) => ({
      owner,
      report: circuitsOf(circuits, dates) as TargetReport,
    }));
    for (const { owner, circuits } of replicas) {
      const others = reports.filter((each) => each.owner !== owner);
      // It is the turn of a third replica.
      const third = { owner: "c", report: { ...reports[0]?.report, circuits: [] } as never };
      followTarget(circuits, [...others, third], { owner, nowMs: 3 * TURN_MS, dates });
    }
    const inDoubt = replicas.map(({ circuits }) => circuits.capacity.breaker.isInDoubt);
    expect(inDoubt).toEqual([false, false]);
  }
});

async function isOpenAt({ url }: Worker): Promise<boolean> {
  const scrape = new Scrape(await (await fetch(`${url}/metrics`)).text());
  const stateOf = (state: string) =>
    scrape.value("batchd_upstream_circuit_state", { target: "model", state });
  return stateOf("closed") === 0;
}

const CASES = ["refuses the credentials", "is down"] as const;

describe.skipIf(postgres === null)("while an upstream fails", () => {
  test.each(CASES)(
    "because it %s, a worker that has sent nothing holds its lines too, and all go on together",
    async (fault) => {
      await using fleet = new Fleet({ databaseUrl: await postgres!.createDatabase() });
      const upstream = await fleet.upstream();
      const silent = await startUpstream();
      const { url: base_url, port } = silent;
      await silent.close();
      if (fault === "refuses the credentials") {
        upstream.answers = () => refusal(401, { message: "Wrong key", code: "invalid_api_key" });
      }
      const start = () =>
        fleet.worker({ upstream, fields: fault === "is down" ? { base_url } : {} });
      const api = await fleet.api();
      const first = await start();
      // One chunk, so the second worker has no line to find the fault with.
      const id = await submit(api, 100);
      await expect.poll(() => isOpenAt(first)).toBe(true);
      const second = await start();
      await expect.poll(() => isOpenAt(second)).toBe(true);

      upstream.answers = () => GOOD;
      await using _again = fault === "is down" ? await startUpstream({ port }) : null;
      await expect
        .poll(async () => (await api.openai.batches.retrieve(id)).status)
        .toBe("completed");
      await expect
        .poll(async () => [await isOpenAt(first), await isOpenAt(second)])
        .toEqual([false, false]);
    },
  );
});
