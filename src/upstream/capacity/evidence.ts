/**
 * Translates the outcome of an attempt for the policies of `capacity.ts`: what it says about the health of the target
 * (`breaker.ts`), about its load (`concurrency.ts`) and about its rate limit (`quota.ts`). It must stay a set of pure
 * functions, so that one answer means the same to all of them.
 */
import { isOfGateway, type Outcome } from "../../batch/outcome.ts";
import type { Sample } from "./adaptive/concurrency.ts";
import type { Evidence } from "./breaker.ts";
import type { Lane } from "./limiter.ts";

/** The work of one input token, compared with an output token: a prompt is read faster than an answer is written. */
const INPUT_TOKEN_WORK = 0.1;

export function evidenceOf(outcome: Outcome): Evidence {
  switch (outcome.kind) {
    case "interrupted":
      return "nothing";
    case "unreachable":
      return "down";
    case "overloaded":
      return "full";
    case "broken":
    case "timed_out":
      return "doubtful";
    // The target answers, if only with a refusal, which is the task of `holds.ts`.
    case "refused":
      return "good";
    case "answered":
      return isOfGateway(outcome.status) ? "doubtful" : "good";
  }
}

/** Returns null for an outcome that says nothing about how much the target can take. */
export function signalOf(outcome: Outcome, lane: Lane): Sample["signal"] | null {
  switch (outcome.kind) {
    case "interrupted":
    case "unreachable":
    case "refused":
      return null;
    case "overloaded":
      return "overloaded";
    case "timed_out":
      return "timed_out";
    case "broken":
      return "unclear";
    case "answered":
      if (outcome.status >= 500 || isOfGateway(outcome.status)) return "unclear";
      // A refusal comes sooner than an answer, and an interactive one has only begun here (`Capacity.noteWhole`).
      return outcome.status >= 400 || lane === "interactive" ? null : "good";
  }
}

export function workOf(outcome: Outcome): number {
  if (outcome.kind !== "answered") return 1;
  const { inputTokens, outputTokens } = outcome.usage;
  return outputTokens + INPUT_TOKEN_WORK * inputTokens || 1;
}

/** Returns null when the usage is unknown. A request that was found wrong used no tokens, whatever its estimate. */
export function usedTokens(outcome: Outcome): number | null {
  if (outcome.kind !== "answered") return null;
  const { status, usage } = outcome;
  if (usage.totalTokens > 0) return usage.totalTokens;
  return status >= 400 && status < 500 ? 0 : null;
}
