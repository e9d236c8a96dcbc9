/**
 * Decides what a replica does about a circuit that is open at some replicas: probe, or wait for the probe of another.
 *
 * A target that is down must not get a probe from each replica. Replicas take turns of ten seconds, and the others follow:
 * they hold their requests. Every second turn belongs to a replica that has found the target down itself, because it has
 * lines to probe with. The turns between belong to all replicas one after the other: the replica that found the target
 * down may be the one that cannot reach it.
 *
 * An answer that any replica gets after the last failure ends it. All moments are dates by the clock of the store.
 */
import type { Outcome, RefusalReason, Refused } from "../batch/outcome.ts";
import type { CircuitBreaker } from "./capacity/breaker.ts";
import type { Unavailability } from "./request.ts";

const TURN_MS = 10_000;
/** A follower hears from the others within this, or its claim ends. */
const FOLLOWED_FOR_MS = 10_000;

export interface OpenedCircuit {
  readonly owner: string;
  readonly openedAtMs: number;
}

export interface CircuitView {
  readonly owner: string;
  readonly nowMs: number;
  /** All replicas that run batches and have the target. */
  readonly workers: readonly string[];
  /** The replicas that have found the target down themselves. */
  readonly opened: readonly OpenedCircuit[];
  /** The latest moment at which the target is known to have served a replica. */
  readonly servedAtMs: number;
}

/** Returns `serving` when requests may go. */
export function partIn({ owner, nowMs, workers, opened, servedAtMs }: CircuitView) {
  if (opened.every(({ openedAtMs }) => openedAtMs < servedAtMs)) return "serving";
  const turn = Math.floor(nowMs / TURN_MS);
  const openers = opened.map((each) => each.owner);
  const candidates = (turn % 2 === 0 ? openers : workers).toSorted();
  const prober = candidates[Math.floor(turn / 2) % candidates.length];
  return prober === owner ? "probe" : "follow";
}

/** What others have found. */
interface Found<Failure> {
  readonly failure: Failure | null;
  readonly nowMs: number;
}

/** Brings the breaker in line with the part; returns true when the state of the circuit has changed. */
export function takePart<Failure extends Outcome>(
  breaker: CircuitBreaker<Failure>,
  part: ReturnType<typeof partIn>,
  { failure, nowMs }: Found<Failure>,
): boolean {
  const before = breaker.circuit;
  const untilMs = nowMs + FOLLOWED_FOR_MS;
  if (part === "follow") breaker.follow(failure, untilMs);
  else if (part === "probe" && before === "closed") {
    breaker.follow(failure, untilMs);
    breaker.lead(nowMs);
  } else if (breaker.isFollowing && (part === "probe" || breaker.isOwn)) breaker.lead(nowMs);
  // A replica that had a turn to probe, and no request to do it with, follows no more.
  else if (part === "serving" && breaker.isOpenForOthers) breaker.resume();
  return breaker.circuit !== before;
}

const REFUSALS: Partial<Record<Unavailability["reason"], RefusalReason>> = {
  refused_credentials: "credentials",
  out_of_quota: "quota",
  wrong_address: "address",
};

/** Makes the failure of a whole target that another replica has reported. */
export function failureAs({ reason, upstreamError }: Unavailability): Outcome {
  if (reason !== "no_room") return { kind: "unreachable", detail: upstreamError ?? "" };
  const answer = { status: 503, requestId: null, body: Buffer.alloc(0), retryAfterMs: null };
  return { kind: "overloaded", ...answer };
}

/** Makes the refusal that another replica has reported. Nothing of the answer itself is reported. */
export function refusedAs({ reason, upstreamError }: Unavailability): Refused | null {
  const refusal = REFUSALS[reason];
  if (refusal === undefined) return null;
  const unknown = { status: 0, requestId: null, said: "", body: null };
  return { kind: "refused", reason: refusal, detail: upstreamError ?? "", ...unknown };
}
