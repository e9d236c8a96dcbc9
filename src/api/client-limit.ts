/**
 * Limits how many clients do something long at a time, in all and of one project. A project may also have no more than what is
 * free, so that a few projects of slow clients leave something to others.
 *
 * A project that has its part has a rate limit to keep. That must not look like a failure of the server: one project could
 * otherwise fill the log with errors, and alarm the operator.
 */
import { Sums } from "../batch/sums.ts";
import { PublicError } from "../errors.ts";

const RETRY_MS = 1_000;

interface Limits {
  readonly total: number;
  readonly ofProject: number;
  /** The message for a client that has to come back. */
  readonly message: string;
}

export class ClientLimit {
  readonly #limits: Limits;
  readonly #counts = new Sums<string>();

  constructor(limits: Limits) {
    this.#limits = limits;
  }

  #refusal(error: "unavailable" | "rate_limit_exceeded"): PublicError {
    return new PublicError(error, this.#limits.message, { retryAfterMs: RETRY_MS });
  }

  /** Counts a client of the project until the returned object is disposed of. Throws when there are too many. */
  acquire(project: string): Disposable {
    const counts = this.#counts;
    const free = this.#limits.total - counts.total;
    if (free <= 0) throw this.#refusal("unavailable");
    if (counts.of(project) >= Math.min(this.#limits.ofProject, Math.max(1, free))) {
      throw this.#refusal("rate_limit_exceeded");
    }
    counts.add(project, 1);
    let isReleased = false;
    return {
      [Symbol.dispose]: () => {
        if (isReleased) return;
        isReleased = true;
        counts.add(project, -1);
      },
    };
  }
}
