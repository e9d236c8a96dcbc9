/**
 * The attempts at one line that have failed so far: what of them counts against the line, and what its targets have shown since.
 * Time is elapsed time.
 */
import type { Outcome } from "../batch/outcome.ts";
import type { RequestKind } from "./request.ts";
import { forgiven, NO_ATTEMPTS, type Tally } from "./retry.ts";
import type { Target } from "./target.ts";

interface Attempt {
  readonly target: Target;
  readonly startedAtMs: number;
}

interface FailedAttempt extends Attempt {
  readonly endedAtMs: number;
}

export class PastAttempts {
  #tally = NO_ATTEMPTS;
  #last: FailedAttempt | null = null;
  /** The start of the first attempt that was refused. */
  #refusedStartAtMs: number | null = null;

  get tally(): Tally {
    return this.#tally;
  }

  /** Adds an attempt that has failed, with the tally that it leads to. */
  add(attempt: FailedAttempt, tally: Tally): void {
    this.#last = attempt;
    this.#tally = tally;
  }

  /** Forgives the line its failures if the target of the last attempt was found down since. */
  forgiveIfDown(nowMs: number): void {
    if (this.#last?.target.capacity.hasBeenDownSince(this.#last.endedAtMs)) {
      this.#tally = forgiven(this.#tally, nowMs);
    }
  }

  /**
   * Returns whether the target of an attempt that has just ended, or the one before it, has served a request that started later. A
   * key that worked after the first refusal is not the cause, so the target must have served one since then.
   */
  haveOthersBeenServed(
    { target, startedAtMs }: Attempt,
    ended: { readonly kind: RequestKind; readonly outcome: Outcome },
  ): boolean {
    if (ended.outcome.kind === "refused") {
      this.#refusedStartAtMs ??= startedAtMs;
      return target.holds.hasServedSince(this.#refusedStartAtMs, ended);
    }
    return (
      target.holds.hasServedSince(startedAtMs, ended) ||
      this.#last?.target.holds.hasServedSince(this.#last.startedAtMs, ended) === true
    );
  }
}
