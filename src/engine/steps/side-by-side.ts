/**
 * Works on several batches side by side, because a large one must not hold up the small ones. A few are worked on for any
 * project, and beyond them one for each project that has none: a project whose large batches take all places for minutes holds
 * up no other one.
 *
 * One loop claims for all of them. A process without work therefore asks the store once in each interval, however many
 * batches it could work on.
 */
import type { Nudge } from "../../loop.ts";
import { ANY_TURN, type ProjectTurn } from "../../store/project-turns.ts";

/** What was claimed. */
export interface Work {
  readonly project: string;
  /** Works on it. */
  readonly run: () => Promise<void>;
}

export interface SideBySideOptions {
  /** The number of batches that are worked on for any project. */
  readonly ofAnyProject: number;
  /** The most batches, with one of each further project. */
  readonly most: number;
  /** Claims one batch for a project whose turn it is; returns null when there is none. */
  readonly claim: (turn: ProjectTurn) => Promise<Work | null>;
  /** The signal that wakes the loop. */
  readonly nudge: Nudge;
  readonly onFailed: (err: unknown) => void;
}

export class SideBySide {
  readonly #options: SideBySideOptions;
  /** What is worked on, with its project. */
  readonly #running = new Map<Promise<void>, string>();
  #former = ANY_TURN.former;

  constructor(options: SideBySideOptions) {
    this.#options = options;
  }

  /** Claims one batch and starts the work on it. Returns false when there is none, or no room for it. */
  async startNext(): Promise<boolean> {
    const { ofAnyProject, most, claim, nudge, onFailed } = this.#options;
    const { size } = this.#running;
    if (size >= most) return false;
    const except = size < ofAnyProject ? [] : [...new Set(this.#running.values())];
    const work = await claim({ former: this.#former, except });
    // A claim without a former project asks the store once. The turn goes on where some projects were passed over.
    if (work !== null || except.length === 0) this.#former = work?.project ?? ANY_TURN.former;
    if (work === null) return false;
    const running = work
      .run()
      .catch(onFailed)
      .then(() => {
        this.#running.delete(running);
        nudge.now();
      });
    this.#running.set(running, work.project);
    return true;
  }

  /** Resolves when everything that was started has ended. */
  async settled(): Promise<void> {
    await Promise.all(this.#running.keys());
  }
}
