import { setImmediate as nextTurn } from "node:timers/promises";
import type { Cancel } from "../../src/clock.ts";
import { FakeClock } from "./fake-clock.ts";

/** An event of one turn may need several turns to pass through a socket. */
const QUIET_TURNS = 3;
const UNSEEN_TURNS = 10;
/** The processor time after which a run counts as endless. A busy machine does not lengthen it. */
const GIVE_UP_AFTER_MS = 120_000;

const usedMs = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
};

const isDiskBusy = () => process.getActiveResourcesInfo().some((name) => name.startsWith("FSReq"));

/**
 * A clock that jumps. Its users work until all of them wait, and then the clock moves to the end of the first wait. An
 * hour takes a second, and a busy machine makes no difference.
 *
 * The clock cannot see into sockets. So its caller defines when all is quiet, and that must be false while any data is
 * on its way.
 */
export class VirtualClock extends FakeClock {
  /** The number of sleeps that ever began or ended. */
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
   * Lets time pass until `work` is done, without a definition of quiet. Time passes when the disk is idle and no sleep
   * has begun or ended for a while. A packet to a socket of this machine arrives at once, so a few turns are long
   * enough.
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
    // The caller gets the rejection of `work` below.
    over.catch(() => {});
    const giveUpAtMs = usedMs() + GIVE_UP_AFTER_MS;
    let turns = 0;
    while (!isOver) {
      await this.#quiet(() => {
        // To ask costs more than most turns.
        if (++turns % 1_000 === 0 && usedMs() > giveUpAtMs) throw new Error(this.#stuck());
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
