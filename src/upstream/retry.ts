/**
 * What to do after an attempt, as a pure function: time and dice are arguments.
 *
 * | Outcome | Then |
 * |---|---|
 * | overloaded (429, 503, 529), unreachable | more time cures it: again, until the deadline |
 * | other 5xx but 501, timed out, broken | may be the line's fault: again, a few times |
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
}

export const DEFAULT_RETRY_POLICY: RetryPolicy = { maxAttempts: 5, baseMs: 500, capMs: 30_000 };

/** The attempts at a line that ended without a final outcome. */
export interface Tally {
  /** Those that may be the line's fault: only they are limited. */
  readonly failures: number;
  /** Those that say nothing about the line. */
  readonly overloads: number;
}

export const NO_ATTEMPTS: Tally = { failures: 0, overloads: 0 };

export interface Moment {
  readonly nowMs: number;
  readonly deadlineAtMs: number;
  /** From 0 up to 1. */
  readonly random: number;
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
  if (outcome.kind === "overloaded" || outcome.kind === "unreachable") {
    const hintMs = outcome.kind === "overloaded" ? (outcome.retryAfterMs ?? 0) : 0;
    const atMs = moment.nowMs + hintMs + jitter(tally.overloads, moment.random, policy);
    const next = { ...tally, overloads: tally.overloads + 1 };
    return { do: "retry", atMs: Math.min(atMs, moment.deadlineAtMs), tally: next };
  }
  if (outcome.kind === "answered" && !isWorthRepeating(outcome.status)) {
    return { do: "record", outcome };
  }
  const failures = tally.failures + 1;
  const atMs = moment.nowMs + jitter(tally.failures, moment.random, policy);
  // A failure with no time left for another try is an answer all the same, and better than none.
  if (failures >= policy.maxAttempts || atMs >= moment.deadlineAtMs) {
    return { do: "record", outcome };
  }
  return { do: "retry", atMs, tally: { ...tally, failures } };
}

/** 501 is a statement about the request; no repetition changes it. */
const isWorthRepeating = (status: number) => status >= 500 && status !== 501;

const jitter = (before: number, random: number, { baseMs, capMs }: RetryPolicy) =>
  random * backoffMs(before, { baseMs, capMs });

/** The longest wait after `before` earlier ones. */
export const backoffMs = (
  before: number,
  { baseMs, capMs }: Pick<RetryPolicy, "baseMs" | "capMs">,
): number => Math.min(baseMs * 2 ** before, capMs);
