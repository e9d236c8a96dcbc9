/**
 * Follows the schedule of a target: says what it allows now, and reports each change when it comes. Without a schedule a
 * target takes lines at any time. It goes by dates, because windows are times of the day.
 */
import { type Clock, sleep } from "../../clock.ts";
import type { ScheduleConfig } from "../../config/upstreams.ts";
import { Schedule } from "./schedule.ts";

/** A schedule is read again after this, because the date may be set and days differ in length. */
const MAX_SLEEP_MS = 60_000;

export class ScheduleFollower {
  readonly #clock: Clock;
  readonly #onChange: () => void;
  #schedule: Schedule | null = null;
  /** Ends the wait for the next window. */
  #following = new AbortController();

  /** `onChange` is called whenever a window begins or ends, and sometimes without a change. */
  constructor(clock: Clock, onChange: () => void) {
    this.#clock = clock;
    this.#onChange = onChange;
  }

  /** Follows another schedule from now on. */
  follow(config: ScheduleConfig | undefined, maxConcurrency: number): void {
    this.close();
    this.#following = new AbortController();
    this.#schedule = config === undefined ? null : new Schedule(config, maxConcurrency);
    if (this.#schedule !== null) void this.#follow(this.#schedule, this.#following.signal);
  }

  /** The number of lines that may be in flight now; null without a schedule. */
  get concurrency(): number | null {
    return this.#schedule?.concurrencyAt(this.#clock.nowMs()) ?? null;
  }

  /** What the schedule allows now, and its next change; null without a schedule. */
  get hours() {
    const nowMs = this.#clock.nowMs();
    const schedule = this.#schedule;
    return (
      schedule && {
        concurrency: schedule.concurrencyAt(nowMs),
        next: schedule.nextChange(nowMs),
      }
    );
  }

  /** Returns the date from which lines may go; one that has passed when they may. */
  opensAtMs(nowMs: number): number {
    return this.#schedule?.opensAtMs(nowMs) ?? 0;
  }

  /** Returns when so much work is done that starts then, including the hours in which the target takes no lines. */
  endOfWork(startAtMs: number, workMs: number): number {
    return this.#schedule?.endOfWork(startAtMs, workMs) ?? startAtMs + workMs;
  }

  close(): void {
    this.#following.abort();
  }

  async #follow(schedule: Schedule, end: AbortSignal): Promise<void> {
    while (!end.aborted) {
      const nowMs = this.#clock.nowMs();
      const changesInMs = Math.max(1, schedule.changesAtMs(nowMs) - nowMs);
      await sleep(this.#clock, Math.min(changesInMs, MAX_SLEEP_MS), end);
      if (!end.aborted) this.#onChange();
    }
  }
}
