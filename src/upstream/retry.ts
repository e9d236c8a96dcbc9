/**
 * What to do after an attempt, as a pure function: time and dice are arguments.
 *
 * | Outcome | Then |
 * |---|---|
 * | overloaded (429, 503, 529), unreachable | more time cures it: again, until the deadline |
 * | refused for the operator's key, account or address | the same, and no sooner than the hold allows |
 * | the same, although the target has served others since | may be the line's fault: again, a few times |
 * | 502, 504, broken, while the target serves nobody | the target's fault for now: again, for a few hours |
 * | the same, although the target has served others since; other 5xx but 501; timed out | may be the line's fault: again, a few times |
 * | any of these, while the circuit of the target is not closed | the target's fault for now: again, for a few hours |
 * | any other status | final |
 * | interrupted | given back; it costs the line nothing |
 *
 * The wait before the next attempt is drawn from nothing up to an exponential bound ("full jitter"), on top
 * of what the upstream asked for, so that lines that failed together do not come back together.
 */
import type { FinalOutcome, Outcome } from "../batch/outcome.ts";

export interface RetryPolicy {
  /** Attempts at a line that may be failing by its own fault, the first one included. */
  readonly maxAttempts: number;
  readonly baseMs: number;
  readonly capMs: number;
  /** How long a target that fails every line is believed to be down, and not to be met by bad lines only. */
  readonly patienceMs: number;
}

export const DEFAULT_RETRY_POLICY: RetryPolicy = {
  maxAttempts: 5,
  baseMs: 500,
  capMs: 30_000,
  patienceMs: 3 * 60 * 60 * 1000,
};

/** The attempts at a line that ended without a final outcome. */
export interface Tally {
  /** Those that may be the line's fault: only they are limited. */
  readonly failures: number;
  /** Those that say nothing about the line. */
  readonly overloads: number;
  /** When the first of them ended; null while there is none. */
  readonly sinceMs: number | null;
}

export const NO_ATTEMPTS: Tally = { failures: 0, overloads: 0, sinceMs: null };

export interface Moment {
  readonly nowMs: number;
  readonly deadlineAtMs: number;
  /** From 0 up to 1. */
  readonly random: number;
  /** Whether the target fails everybody, as its circuit breaker has it. */
  readonly isTargetDown: boolean;
  /**
   * Whether the target has served another request that started after the line's own last attempt, or, for one that is
   * refused, after its first refusal: a key that was good then is not what is wrong with the line.
   */
  readonly hasServedOthers: boolean;
}

export type Next =
  | { readonly do: "record"; readonly outcome: FinalOutcome }
  | { readonly do: "give_back" }
  /** At the deadline, when the wait would outlast it: the line is then left as one that never ran. */
  | { readonly do: "retry"; readonly atMs: number; readonly tally: Tally };

/** The `tally` is of the attempts before this one. */
export function decide(
  outcome: Outcome,
  { tally, ...moment }: Moment & { readonly tally: Tally },
  policy: RetryPolicy,
): Next {
  if (outcome.kind === "interrupted") return { do: "give_back" };
  if (outcome.kind === "answered" && !isWorthRepeating(outcome.status)) {
    return { do: "record", outcome };
  }
  const sinceMs = tally.sinceMs ?? moment.nowMs;
  const isPatient = moment.nowMs - sinceMs < policy.patienceMs;
  if (isCuredByTime(outcome, moment) || (isPatient && isTargetsFault(outcome, moment))) {
    const hintMs = outcome.kind === "overloaded" ? (outcome.retryAfterMs ?? 0) : 0;
    const atMs = moment.nowMs + hintMs + jitter(tally.overloads, moment.random, policy);
    const next = { ...tally, overloads: tally.overloads + 1, sinceMs };
    return { do: "retry", atMs: Math.min(atMs, moment.deadlineAtMs), tally: next };
  }
  const failures = tally.failures + 1;
  const atMs = moment.nowMs + jitter(tally.failures, moment.random, policy);
  // A failure with no time left for another try is an answer all the same, and better than none.
  if (failures >= policy.maxAttempts || atMs >= moment.deadlineAtMs) {
    return { do: "record", outcome };
  }
  return { do: "retry", atMs, tally: { ...tally, failures, sinceMs } };
}

const isCuredByTime = (outcome: Outcome, { hasServedOthers }: Moment) =>
  outcome.kind === "overloaded" ||
  outcome.kind === "unreachable" ||
  (outcome.kind === "refused" && !hasServedOthers);

const isTargetsFault = (outcome: Outcome, { isTargetDown, hasServedOthers }: Moment) =>
  isTargetDown || (isDoubtful(outcome) && !hasServedOthers);

/**
 * Whether it may be the target's fault as well as the line's. A timeout is not: it has given the target minutes, and a
 * line that asks for too long an answer times out wherever it goes.
 */
const isDoubtful = (outcome: Outcome) =>
  outcome.kind === "broken" ||
  (outcome.kind === "answered" && (outcome.status === 502 || outcome.status === 504));

/** The tally of a line whose target was found down after the line had failed there: that was not its fault. */
export function forgiven(tally: Tally, nowMs: number, { patienceMs }: RetryPolicy): Tally {
  const isPatient = tally.sinceMs !== null && nowMs - tally.sinceMs < patienceMs;
  return isPatient ? { ...tally, failures: 0 } : tally;
}

/** 501 is a statement about the request; no repetition changes it. */
const isWorthRepeating = (status: number) => status >= 500 && status !== 501;

/** The wait after `before` earlier ones. */
const jitter = (before: number, random: number, { baseMs, capMs }: RetryPolicy) =>
  random * Math.min(baseMs * 2 ** before, capMs);
