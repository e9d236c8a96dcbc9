/**
 * Finds servers that send so slowly that a read would never end. The limit of a connection is about silence, and a
 * server that sends a byte each second is never silent. Only the time for which the reader waits for the server
 * counts. A reader that takes its time, such as a slow download, must never be mistaken for a slow server.
 * One long silence is no slow server either. The limit of the connection finds it, and the read goes on over another one.
 */
import type { Clock } from "../clock.ts";

/** The time in which a server may send nothing but a few bytes: an overloaded one recovers. */
const WINDOW_MS = 30_000;
/** What a single wait counts at most: only several of them show that a server is slow. */
const MAX_WAIT_MS = WINDOW_MS / 2;
/** A merge has up to 32 reads at a time, so the link to the server must carry 1 Mbit/s. */
const MIN_BYTES_PER_SECOND = 4 * 1024;
const MIN_BYTES = (MIN_BYTES_PER_SECOND * WINDOW_MS) / 1_000;

export class ReadingRate {
  readonly #clock: Pick<Clock, "elapsedMs">;
  #waitedMs = 0;
  #bytes = 0;

  constructor(clock: Pick<Clock, "elapsedMs">) {
    this.#clock = clock;
  }

  /** Waits for the server, and counts the wait. */
  async during<T>(wait: Promise<T>): Promise<T> {
    const startMs = this.#clock.elapsedMs();
    try {
      return await wait;
    } finally {
      this.#waitedMs += Math.min(this.#clock.elapsedMs() - startMs, MAX_WAIT_MS);
    }
  }

  /** Counts bytes that have come, and returns whether the server is too slow to wait for the next ones. */
  isTooSlowAfter(bytes: number): boolean {
    this.#bytes += bytes;
    if (this.#waitedMs < WINDOW_MS) return false;
    const isTooSlow = this.#bytes < MIN_BYTES;
    this.#waitedMs = 0;
    this.#bytes = 0;
    return isTooSlow;
  }
}
