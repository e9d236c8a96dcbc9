/**
 * Works on several batches side by side, because a large one must not hold up the small ones.
 *
 * One loop claims for all of them. A process without work therefore asks the store once in each interval, however many
 * batches it could work on.
 */
import type { Nudge } from "../loop.ts";

/** Works on what was claimed. */
export type Work = () => Promise<void>;

export interface SideBySideOptions {
  readonly limit: number;
  /** Claims one batch; returns null when there is none. */
  readonly claim: () => Promise<Work | null>;
  /** The signal that wakes the loop. */
  readonly nudge: Nudge;
  readonly onFailed: (err: unknown) => void;
}

export class SideBySide {
  readonly #options: SideBySideOptions;
  readonly #running = new Set<Promise<void>>();

  constructor(options: SideBySideOptions) {
    this.#options = options;
  }

  /** Claims one batch and starts the work on it. Returns false when there is none, or no room for it. */
  async startNext(): Promise<boolean> {
    const { limit, claim, nudge, onFailed } = this.#options;
    if (this.#running.size >= limit) return false;
    const work = await claim();
    if (work === null) return false;
    const running = work()
      .catch(onFailed)
      .then(() => {
        this.#running.delete(running);
        nudge.now();
      });
    this.#running.add(running);
    return true;
  }

  /** Resolves when everything that was started has ended. */
  async settled(): Promise<void> {
    await Promise.all(this.#running);
  }
}
