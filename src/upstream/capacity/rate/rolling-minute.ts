/**
 * Counts how much was spent in the last sixty seconds, and when there is room for more. The count must never be too
 * low.
 */
const WINDOW_MS = 60_000;
const CELL_MS = 250;
/** One cell more than a minute takes: the first and the last are seldom whole. */
const CELL_COUNT = WINDOW_MS / CELL_MS + 1;
/** Sums of fractions are not exact. */
const SLACK = 1e-6;

const indexOf = (cell: number) => (cell + CELL_COUNT) % CELL_COUNT;

export class RollingMinute {
  readonly #cells = new Float64Array(CELL_COUNT);
  /** Cells are numbered as time elapses; the number is below zero for the time before the start. */
  #newest = 0;
  #spent = 0;

  spend(amount: number, nowMs: number): void {
    this.#advance(nowMs);
    this.#addTo(this.#newest, amount);
  }

  /** Corrects the units spent at that instant by `amount`, which is negative when there were fewer. */
  correct(amount: number, spentAtMs: number): void {
    const cell = Math.floor(spentAtMs / CELL_MS);
    if (cell > this.#newest - CELL_COUNT) this.#addTo(Math.min(cell, this.#newest), amount);
  }

  spentAt(nowMs: number): number {
    this.#advance(nowMs);
    return this.#spent;
  }

  /** Returns when so much fits below `limit`. An amount larger than the limit goes when nothing else was spent. */
  roomAtMs(amount: number, { limit, nowMs }: { limit: number; nowMs: number }): number {
    this.#advance(nowMs);
    const most = limit - Math.min(amount, limit) + SLACK;
    let spent = this.#spent;
    if (spent <= most) return nowMs;
    for (let cell = this.#newest - CELL_COUNT + 1; cell < this.#newest; cell++) {
      spent -= this.#cells[indexOf(cell)] as number;
      if (spent <= most) return (cell + CELL_COUNT) * CELL_MS;
    }
    return (this.#newest + CELL_COUNT) * CELL_MS;
  }

  #addTo(cell: number, amount: number): void {
    const at = indexOf(cell);
    this.#cells[at] = (this.#cells[at] as number) + amount;
    this.#spent += amount;
  }

  #advance(nowMs: number): void {
    const newest = Math.floor(nowMs / CELL_MS);
    if (newest - this.#newest >= CELL_COUNT) {
      this.#cells.fill(0);
      this.#spent = 0;
      this.#newest = newest;
    }
    while (this.#newest < newest) {
      const at = indexOf(++this.#newest);
      this.#spent -= this.#cells[at] as number;
      this.#cells[at] = 0;
    }
  }
}
