/**
 * Limits how many things happen at the same time. The projects for which the others wait take turns. A few happen for any project,
 * and beyond them, up to `most`, one for each project that has none: a project whose long things take all places holds up no
 * other one.
 */
import { Sums } from "../batch/sums.ts";
import { ClientTurns, type Party } from "./client-turns.ts";
import { projectOfWork } from "./client-work.ts";

export class Semaphore {
  readonly #ofAnyProject: number;
  readonly #most: number;
  readonly #counts = new Sums<Party>();
  readonly #waiting = new ClientTurns<() => void>();

  constructor(ofAnyProject: number, most = ofAnyProject) {
    this.#ofAnyProject = ofAnyProject;
    this.#most = most;
  }

  async run<T>(work: () => Promise<T>): Promise<T> {
    const party = projectOfWork();
    if (this.#mayBegin(party)) this.#counts.add(party, 1);
    else await new Promise<void>((resolve) => this.#waiting.add(resolve));
    try {
      return await work();
    } finally {
      this.#counts.add(party, -1);
      this.#startWaiting();
    }
  }

  /** Starts all that may begin. Several may: one in the place that is free, and one of a project that has none any more. */
  #startWaiting(): void {
    let next = this.#waiting.next(this.#mayBegin);
    while (next !== null) {
      const [start, party] = next;
      this.#counts.add(party, 1);
      start();
      next = this.#waiting.next(this.#mayBegin);
    }
  }

  readonly #mayBegin = (party: Party): boolean => {
    const { total } = this.#counts;
    return total < this.#ofAnyProject || (total < this.#most && this.#counts.of(party) === 0);
  };
}
