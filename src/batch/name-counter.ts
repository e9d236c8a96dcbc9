/** Counts names that come from outside, in bounded memory. */
import type { NameCounts } from "./run-summary.ts";

const MAX_NAMES = 100;
export const MAX_NAME_CHARACTERS = 256;

export class NameCounter {
  readonly #counts = new Map<string, number>();
  #others = 0;

  add(name: string): void {
    const key = name.slice(0, MAX_NAME_CHARACTERS);
    const count = this.#counts.get(key);
    if (count === undefined && this.#counts.size === MAX_NAMES) this.#others++;
    else this.#counts.set(key, (count ?? 0) + 1);
  }

  /** Names with equal numbers are in the order of their characters, so that the result does not depend on chance. */
  finish(): NameCounts {
    const names = [...this.#counts]
      .map(([name, lines]) => ({ name, lines }))
      .sort((a, b) => b.lines - a.lines || (a.name < b.name ? -1 : 1));
    return { names, others: this.#others };
  }
}
