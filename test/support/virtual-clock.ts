import { setImmediate as nextTurn } from "node:timers/promises";
import type { Cancel } from "../../src/clock.ts";
import { FakeClock } from "./fake-clock.ts";

/** With sockets in between, what one turn of the event loop began may take a few to arrive. */
const QUIET_TURNS = 3;
const UNSEEN_TURNS = 10;
/** A run that takes so long in reality will not end. */
const GIVE_UP_AFTER_MS = 55_000;

const isDiskBusy = () => process.getActiveResourcesInfo().some((name) => name.startsWith("FSReq"));

/**
 * Time that jumps: everybody who shares this clock works until nothing is left to do but wait, and then it
 * is as late as the first of them asked for. An hour takes a second, and however busy the machine is, no
 * time passes meanwhile.
 *
 * What goes on in sockets cannot be seen from here. So whoever runs it says when all is quiet, and that must
 * not be so while anything is on its way.
 */
export class VirtualClock extends FakeClock {
  /** Sleeps that ever began or ended. */
  #sleepCount = 0;

  override after(ms: number, fn: () => void): Cancel {
    this.#sleepCount++;
    const cancel = super.after(Math.ceil(ms), () => {
      this.#sleepCount++;
      fn();
    });
    return () => {
      this.#sleepCount++;
      cancel();
    };
  }

  /**
   * Lets time pass until `work` is done, where nobody can say when all is quiet: when nothing is read or
   * written on disk, and nobody has gone to sleep or woken up for a while. What hands a packet to a socket of
   * this machine has delivered it, so a few turns are a long time.
   */
  runUnseen<T>(work: Promise<T>): Promise<T> {
    let seen = -1;
    let turns = 0;
    return this.run(work, () => {
      const isStill = seen === this.#sleepCount && !isDiskBusy();
      seen = this.#sleepCount;
      turns = isStill ? turns + 1 : 0;
      return turns >= UNSEEN_TURNS;
    });
  }

  /** Lets time pass until `work` is done. */
  async run<T>(work: Promise<T>, isQuiet: () => boolean): Promise<T> {
    let isOver = false;
    const over = work.finally(() => {
      isOver = true;
    });
    // Whoever awaits `work` hears of it below.
    over.catch(() => {});
    const giveUpAtMs = performance.now() + GIVE_UP_AFTER_MS;
    while (!isOver) {
      await this.#quiet(() => {
        if (performance.now() > giveUpAtMs) throw new Error(this.#stuck());
        return isOver || (this.sleeperCount > 0 && isQuiet());
      });
      if (!isOver) this.#jump();
    }
    return work;
  }

  async #quiet(isQuiet: () => boolean): Promise<void> {
    for (let turns = 0; turns < QUIET_TURNS; turns = isQuiet() ? turns + 1 : 0) await nextTurn();
  }

  #stuck(): string {
    const now = new Date(this.nowMs()).toISOString();
    return `the work does not end: it is ${now}, and ${this.sleeperCount} are asleep`;
  }

  #jump(): void {
    this.advance(Math.max(0, this.nextAtMs - this.nowMs()));
  }
}
