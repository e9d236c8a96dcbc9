import { describe, expect, test } from "vitest";
import { type FleetRoute, outlookOf } from "../../../src/engine/dispatch/fleet-routes.ts";
import { waitOf } from "../../../src/engine/dispatch/waiting.ts";
import type { OpenBatch } from "../../../src/store/batches.ts";
import type { Unavailability } from "../../../src/upstream/request.ts";

const NOW_MS = 1_800_000_000_000;

const aRoute = (fields: Partial<FleetRoute> = {}): FleetRoute => ({
  key: "gpu",
  opensInMs: -5,
  isBusy: true,
  canWrite: true,
  throughput: { linesPerSecond: 10, isLowerBound: false },
  unavailabilityFor: () => null,
  endOfWork: (startAtMs, workMs) => startAtMs + workMs,
  ...fields,
});

const unavailable = (reason: Unavailability["reason"]) =>
  aRoute({ unavailabilityFor: () => ({ reason, upstreamError: null }) });

describe("the outlook of a model", () => {
  const throughputOf = (...routes: FleetRoute[]) => outlookOf(routes, NOW_MS)?.throughput;

  test("has the throughput of all replicas together", () => {
    expect(throughputOf(aRoute(), aRoute(), aRoute({ throughput: null }))).toEqual({
      linesPerSecond: 20,
      isLowerBound: false,
    });
    const slow = aRoute({ throughput: { linesPerSecond: 1, isLowerBound: true } });
    expect(throughputOf(aRoute(), slow)).toEqual({ linesPerSecond: 11, isLowerBound: true });
  });

  test("leaves out what a replica without lines measured before, unless all are without", () => {
    const idle = aRoute({ isBusy: false });
    expect(throughputOf(aRoute(), idle)?.linesPerSecond).toBe(10);
    expect(throughputOf(idle, idle)?.linesPerSecond).toBe(20);
  });

  test("is of the first replica that takes lines, and of none where no replica serves the model", () => {
    const closed = aRoute({ opensInMs: 60_000 });
    expect(outlookOf([closed, aRoute()], NOW_MS)?.opensAtMs).toBe(NOW_MS);
    expect(outlookOf([closed], NOW_MS)?.opensAtMs).toBe(NOW_MS + 60_000);
    expect(outlookOf([], NOW_MS)).toBeNull();
  });
});

describe("a batch waits", () => {
  const batch = { project: "one", isValidated: true, heldCount: 1, lostCount: 0 } as OpenBatch;
  const reasonAt = (...routes: FleetRoute[]) =>
    waitOf({ ...batch, work: [{ model: "llama", lineCount: 1 }] }, () => routes)?.reason;

  test("not while one replica takes its lines", () => {
    expect(reasonAt(unavailable("upstream_down"), aRoute())).toBeUndefined();
    expect(reasonAt(aRoute({ canWrite: false }), aRoute())).toBeUndefined();
  });

  test("for the most important reason where all have one", () => {
    expect(reasonAt(unavailable("no_room"), unavailable("upstream_down"))).toBe("upstream_down");
    expect(reasonAt(unavailable("no_room"), aRoute({ canWrite: false }))).toBe(
      "journal_not_writable",
    );
    expect(reasonAt()).toBe("not_served");
  });
});
