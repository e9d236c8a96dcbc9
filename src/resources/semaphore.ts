/**
 * Limits how many things happen at the same time. The projects for which the others wait take turns. A few happen for any project,
 * and beyond them, up to `most`, one for each project that has none: a project whose long things take all places holds up no
 * other one.
 */
import { ClientTurns, type Party } from "./client-turns.ts";
import { projectOfWork } from "./client-work.ts";

export class Semaphore {
  readonly #ofAnyProject: number;
  readonly #most: number;
  #count = 0;
  readonly #countOf = new Map<Party, number>();
  readonly #waiting = new ClientTurns<() => void>();

  constructor(ofAnyProject: number, most = ofAnyProject) {
    this.#ofAnyProject = ofAnyProject;
    this.#most = most;
  }

  async run<T>(work: () => Promise<T>): Promise<T> {
    const party = projectOfWork();
    if (this.#mayBegin(party)) this.#begin(party);
    else await new Promise<void>((resolve) => this.#waiting.add(resolve));
    try {
      return await work();
    } finally {
      this.#end(party);
      this.#startWaiting();
    }
  }

  /** Starts all that may begin. Several may: one in the place that is free, and one of a project that has none any more. */
  #startWaiting(): void {
    let next = this.#waiting.next(this.#mayBegin);
    while (next !== null) {
      const [start, party] = next;
      this.#begin(party);
      start();
      next = this.#waiting.next(this.#mayBegin);
    }
  }

  readonly #mayBegin = (party: Party): boolean =>
    this.#count < this.#ofAnyProject || (this.#count < this.#most && !this.#countOf.has(party));

  #begin(party: Party): void {
    this.#count += 1;
    this.#countOf.set(party, (this.#countOf.get(party) ?? 0) + 1);
  }

  #end(party: Party): void {
    this.#count -= 1;
    const left = (this.#countOf.get(party) ?? 1) - 1;
    if (left > 0) this.#countOf.set(party, left);
    else this.#countOf.delete(party);
  }
}
