/** Counts what a move has done, and says so in lines for people, some seconds apart. */
import type { Clock } from "../clock.ts";
import * as words from "../words.ts";

const LINE_EVERY_MS = 2_000;

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
    say(`blobs: ${words.count(total.count)} with ${words.bytes(total.bytes)} to copy`);
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
    const done = `${words.count(this.verifiedCount)} of ${words.count(count)} copied and verified`;
    const size = `${words.bytes(this.verifiedBytes)} of ${words.bytes(bytes)}`;
    const kept = this.keptCount === 0 ? "" : `, ${words.count(this.keptCount)} by an earlier run`;
    this.#say(`blobs: ${done} (${size})${kept}`);
  }
}
