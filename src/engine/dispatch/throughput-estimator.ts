/**
 * Estimates how many lines a second a route answers while it has lines. Time without work must not count as slowness.
 *
 * A window lasts until a line ends, and a second at least. While no line has to wait for a slot, the lack of work
 * limits the route, so such a window can only raise the estimate. The estimate changes slowly after many windows. A
 * window in which no line ends lowers it only as far as the window proves.
 */

/** The time of work after which an old measurement counts for a third. */
const MEMORY_MS = 60_000;
const MIN_WINDOW_MS = 1_000;

export interface Throughput {
  readonly linesPerSecond: number;
  /** Whether the route may be faster: no line has had to wait yet. */
  readonly isLowerBound: boolean;
}

export class ThroughputEstimator {
  #known: Throughput | null = null;
  /** The time of work that went into the estimate. */
  #measuredMs = 0;
  #openCount = 0;
  #busySinceMs = 0;
  #windowMs = 0;
  #windowLines = 0;
  #wasFull = false;

  /** Counts one more chunk at work. */
  begin(nowMs: number): void {
    if (this.#openCount++ === 0) this.#busySinceMs = nowMs;
  }

  end(nowMs: number): void {
    this.#addBusy(nowMs);
    this.#openCount--;
  }

  /** Counts a line that has its outcome. */
  count(): void {
    this.#windowLines++;
  }

  /** Takes a measurement. `load` says whether lines had to wait since the last call. */
  sample(nowMs: number, load: "full" | "idling"): void {
    this.#addBusy(nowMs);
    if (load === "full") this.#wasFull = true;
    if (this.#windowLines === 0 || this.#windowMs < MIN_WINDOW_MS) return;
    this.#learn((this.#windowLines / this.#windowMs) * 1000);
    this.#windowMs = 0;
    this.#windowLines = 0;
    this.#wasFull = false;
  }

  /** Whether chunks are at work. */
  get isBusy(): boolean {
    return this.#openCount > 0;
  }

  get throughput(): Throughput | null {
    if (this.#known === null || this.#windowLines > 0 || !this.#wasFull) return this.#known;
    const linesPerSecond = Math.min(this.#known.linesPerSecond, 1000 / Math.max(1, this.#windowMs));
    return { ...this.#known, linesPerSecond };
  }

  #addBusy(nowMs: number): void {
    if (this.#openCount > 0) this.#windowMs += nowMs - this.#busySinceMs;
    this.#busySinceMs = nowMs;
  }

  #learn(seen: number): void {
    const known = this.#known;
    if (!this.#wasFull) {
      if (known === null || (known.isLowerBound && seen > known.linesPerSecond)) {
        this.#known = { linesPerSecond: seen, isLowerBound: true };
        return;
      }
      if (known.isLowerBound || seen <= known.linesPerSecond) return;
    }
    const before = known === null || known.isLowerBound ? null : known.linesPerSecond;
    if (before === null) this.#measuredMs = 0;
    this.#measuredMs += this.#windowMs;
    const fading = 1 - Math.exp(-this.#windowMs / MEMORY_MS);
    const part = Math.max(fading, this.#windowMs / this.#measuredMs);
    const linesPerSecond = before === null ? seen : before + part * (seen - before);
    this.#known = { linesPerSecond, isLowerBound: false };
  }
}
