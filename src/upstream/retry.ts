/**
 * Decides what to do after an attempt. It is a pure function: the time and the random number are arguments.
 *
 * | Outcome | Then |
 * |---|---|
 * | overloaded (429, 498, 503, 529), unreachable | more time cures it: again, until the deadline |
 * | 429 for a line that is larger than the limit of a minute | final, but for another target: again, a few times |
 * | refused for the operator's key, account or address | the same, and no sooner than the hold allows |
 * | refused with 429, whatever others get | the same: DashScope and others call a rate limit a quota |
 * | the same, although the target has served others since | may be the line's fault: again, a few times |
 * | 408, 502, 504, 52x, 530, broken, while the target serves no request | the target's fault for now: again, for a few hours |
 * | the same, although the target has served others since | may be the line's fault: again, a few times |
 * | 409, 424, other 5xx but 501, timed out | may be the line's fault: again, a few times |
 * | any of these, while the circuit of the target is not closed | the target's fault for now: again, for a few hours |
 * | any other status | final |
 * | interrupted | given back; it costs the line nothing |
 *
 * The wait before the next attempt is drawn from nothing up to an exponential bound ("full jitter"). It comes on top
 * of the wait that the upstream asked for. Lines that failed together must not come back together.
 */
import { type FinalOutcome, isOfGateway, type Outcome } from "../batch/outcome.ts";

/** The number of attempts at a line that may be failing by its own fault, the first one included. */
const MAX_ATTEMPTS = 5;
const BASE_MS = 500;
/** The longest wait beyond the one that an upstream asks for. */
export const CAP_MS = 30_000;
/** The time for which a target that fails every line counts as down. After it, bad lines count as the cause. */
export const PATIENCE_MS = 3 * 60 * 60 * 1000;

/** The attempts at a line that ended without a final outcome. */
export interface Tally {
  /** Attempts whose failure may be the line's fault. Only their number is limited. */
  readonly failures: number;
  /** Attempts that say nothing about the line. */
  readonly overloads: number;
  /** The time at which the first of them ended; null while there is none. */
  readonly sinceMs: number | null;
}

export const NO_ATTEMPTS: Tally = { failures: 0, overloads: 0, sinceMs: null };

export interface Moment {
  readonly nowMs: number;
  readonly deadlineAtMs: number;
  /** A number from 0 up to 1. */
  readonly random: number;
  /** Whether the circuit breaker of the target is not closed, so that every request fails there. */
  readonly isTargetDown: boolean;
  /**
   * Whether the target has served another request that started after the line's own last attempt. For a refused line
   * the first refusal counts: a key that worked after it is not the cause.
   */
  readonly hasServedOthers: boolean;
  /** Whether other targets serve the model. Their limits may be higher. */
  readonly hasOtherTargets: boolean;
}

export type Next =
  | { readonly do: "record"; readonly outcome: FinalOutcome }
  | { readonly do: "give_back" }
  /** The time is the deadline when the wait would outlast it: the line then counts as one that never ran. */
  | { readonly do: "retry"; readonly atMs: number; readonly tally: Tally };

/** `tally` counts the attempts before this one. */
export function decide(
  outcome: Outcome,
  { tally, ...moment }: Moment & { readonly tally: Tally },
): Next {
  if (outcome.kind === "interrupted") return { do: "give_back" };
  if (outcome.kind === "answered" && !isWorthRepeating(outcome.status, moment)) {
    return { do: "record", outcome };
  }
  const sinceMs = tally.sinceMs ?? moment.nowMs;
  const isPatient = moment.nowMs - sinceMs < PATIENCE_MS;
  if (isCuredByTime(outcome, moment) || (isPatient && isTargetsFault(outcome, moment))) {
    const hintMs = outcome.kind === "overloaded" ? (outcome.retryAfterMs ?? 0) : 0;
    const atMs = moment.nowMs + hintMs + jitter(tally.overloads, moment.random);
    const next = { ...tally, overloads: tally.overloads + 1, sinceMs };
    return { do: "retry", atMs: Math.min(atMs, moment.deadlineAtMs), tally: next };
  }
  const failures = tally.failures + 1;
  const atMs = moment.nowMs + jitter(tally.failures, moment.random);
  // A failure with no time left for another try is an answer all the same, and better than none.
  if (failures >= MAX_ATTEMPTS || atMs >= moment.deadlineAtMs) {
    return { do: "record", outcome };
  }
  return { do: "retry", atMs, tally: { ...tally, failures, sinceMs } };
}

const OVERLOADED = 429;

const isCuredByTime = (outcome: Outcome, { hasServedOthers }: Moment) =>
  outcome.kind === "overloaded" ||
  outcome.kind === "unreachable" ||
  (outcome.kind === "refused" && (outcome.status === OVERLOADED || !hasServedOthers));

const isTargetsFault = (outcome: Outcome, { isTargetDown, hasServedOthers }: Moment) =>
  isTargetDown || (isDoubtful(outcome) && !hasServedOthers);

/**
 * Whether the failure may be the target's fault as well as the line's. A timeout is the line's: it has given the
 * target minutes, and a line that asks for too long an answer times out at every target.
 */
const isDoubtful = (outcome: Outcome) =>
  outcome.kind === "broken" || (outcome.kind === "answered" && isOfGateway(outcome.status));

/**
 * Returns the tally without the failures of a line whose target was found down afterwards: the line was not at fault.
 */
export function forgiven(tally: Tally, nowMs: number): Tally {
  const isPatient = tally.sinceMs !== null && nowMs - tally.sinceMs < PATIENCE_MS;
  return isPatient ? { ...tally, failures: 0 } : tally;
}

/**
 * A 501 is a statement about the request, which no repetition changes. OpenAI's clients repeat a 408 and a 409, too. A 424 is
 * what the servers of Hugging Face say in place of a 500: the router is well, and what runs the model has failed.
 */
const isWorthRepeating = (status: number, { hasOtherTargets }: Moment) =>
  (status >= 500 && status !== 501) ||
  [408, 409, 424].includes(status) ||
  (status === OVERLOADED && hasOtherTargets);

/** Draws the wait after `before` earlier ones. */
const jitter = (before: number, random: number) => random * Math.min(BASE_MS * 2 ** before, CAP_MS);
