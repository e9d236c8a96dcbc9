/**
 * Bounds the time for which one thing is done within one turn of the event loop: lines are sent, answers are read, or
 * requests of clients begin.
 *
 * A fast upstream answers hundreds of lines before the loop comes round. If each answer sent the next line at once, a
 * turn would last for as long as all of them, and a client that asks for a status would wait for two or three such
 * turns. With this bound a line may have to wait for the next turn, which begins as soon as the sockets have been read.
 */
import type { Clock } from "../clock.ts";
import { isTurnLeft } from "./arrivals.ts";
import { ClientTurns } from "./client-turns.ts";

/** It is enough for some 50 lines. A shorter time costs throughput, since each turn has a price of its own. */
const SENDING_MS = 4;

export class TurnBudget {
  readonly #clock: Pick<Clock, "elapsedMs">;
  readonly #turnMs: number;
  /** The end of the time in this turn; null until it is first asked for. */
  #endsAtMs: number | null = null;
  readonly #onNextTurn = new ClientTurns<() => void>();

  constructor(clock: Pick<Clock, "elapsedMs">, turnMs = SENDING_MS) {
    this.#clock = clock;
    this.#turnMs = turnMs;
  }

  /** Whether there is time left in this turn. When there is none, `onNextTurn` is called in the next one. */
  hasTime(onNextTurn: () => void): boolean {
    if (this.#isOpen()) return true;
    this.#onNextTurn.add(onNextTurn);
    return false;
  }

  #isOpen(): boolean {
    const nowMs = this.#clock.elapsedMs();
    if (this.#endsAtMs === null) {
      this.#endsAtMs = isTurnLeft() ? nowMs : nowMs + this.#turnMs;
      setImmediate(this.#startTurn);
    }
    return nowMs < this.#endsAtMs;
  }

  readonly #startTurn = (): void => {
    this.#endsAtMs = null;
    this.#callNext();
  };

  /**
   * Calls what waits, one after the other while there is time. What follows from a call comes before the next one, because it
   * may take many times as long as the call itself.
   */
  readonly #callNext = (): void => {
    if (this.#onNextTurn.isEmpty || !this.#isOpen()) return;
    this.#onNextTurn.next()?.[0]();
    // A tick comes after all microtasks, and this one after the ticks that they have asked for.
    queueMicrotask(() => process.nextTick(this.#callNext));
  };
}
