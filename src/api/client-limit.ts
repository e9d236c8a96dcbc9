/**
 * Limits how many clients do something long at a time, in all and of one project. A project may also have no more than what is
 * free, so that a few projects of slow clients leave something to others.
 *
 * A project that has its part has a rate limit to keep. That must not look like a failure of the server: one project could
 * otherwise fill the log with errors, and alarm the operator.
 */
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
  readonly #counts = new Map<string, number>();
  #total = 0;

  constructor(limits: Limits) {
    this.#limits = limits;
  }

  #refusal(error: "unavailable" | "rate_limit_exceeded"): PublicError {
    return new PublicError(error, this.#limits.message, { retryAfterMs: RETRY_MS });
  }

  /** Counts a client of the project until the returned object is disposed of. Throws when there are too many. */
  acquire(project: string): Disposable {
    const counts = this.#counts;
    const own = counts.get(project) ?? 0;
    const free = this.#limits.total - this.#total;
    if (free <= 0) throw this.#refusal("unavailable");
    if (own >= Math.min(this.#limits.ofProject, Math.max(1, free))) {
      throw this.#refusal("rate_limit_exceeded");
    }
    counts.set(project, own + 1);
    this.#total += 1;
    let isReleased = false;
    return {
      [Symbol.dispose]: () => {
        if (isReleased) return;
        isReleased = true;
        this.#total -= 1;
        const left = (counts.get(project) ?? 1) - 1;
        if (left > 0) counts.set(project, left);
        else counts.delete(project);
      },
    };
  }
}
