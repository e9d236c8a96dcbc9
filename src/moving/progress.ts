/** Counts what a move has done, and says so in lines for people, some seconds apart. */
import type { Clock } from "../clock.ts";

const LINE_EVERY_MS = 2_000;
const STEP = 1_000;
const UNITS = ["B", "kB", "MB", "GB", "TB"];

export interface Work {
  readonly count: number;
  readonly bytes: number;
}

export class BlobProgress {
  /** The blobs of the target whose bytes were read again and are the same. */
  verifiedCount = 0;
  verifiedBytes = 0;
  /** The blobs that an earlier run had copied. */
  keptCount = 0;
  readonly #total: Work;
  readonly #clock: Pick<Clock, "elapsedMs">;
  readonly #say: (line: string) => void;
  #saidAtMs: number;

  constructor(total: Work, clock: Pick<Clock, "elapsedMs">, say: (line: string) => void) {
    this.#total = total;
    this.#clock = clock;
    this.#say = say;
    this.#saidAtMs = clock.elapsedMs();
    say(`blobs: ${numberText(total.count)} with ${bytesText(total.bytes)} to copy`);
  }

  verified(bytes: number, wasThere: boolean): void {
    this.verifiedCount++;
    this.verifiedBytes += bytes;
    if (wasThere) this.keptCount++;
    const nowMs = this.#clock.elapsedMs();
    if (nowMs - this.#saidAtMs < LINE_EVERY_MS) return;
    this.#saidAtMs = nowMs;
    this.sayState();
  }

  sayState(): void {
    const { count, bytes } = this.#total;
    const done = `${numberText(this.verifiedCount)} of ${numberText(count)} copied and verified`;
    const size = `${bytesText(this.verifiedBytes)} of ${bytesText(bytes)}`;
    const kept = this.keptCount === 0 ? "" : `, ${numberText(this.keptCount)} by an earlier run`;
    this.#say(`blobs: ${done} (${size})${kept}`);
  }
}

export const numberText = (number: number): string => number.toLocaleString("en-US");

export function bytesText(bytes: number): string {
  let [value, unit] = [bytes, 0];
  for (; value >= STEP && unit < UNITS.length - 1; unit++) value /= STEP;
  return `${unit === 0 ? value : value.toFixed(1)} ${UNITS[unit]}`;
}
