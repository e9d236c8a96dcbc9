/**
 * Decides when a target takes batch lines, and how many at once, by windows of local time in its time zone.
 *
 * An instant is inside a window when the local clock shows a time between `from` and `to`. Daylight saving does not
 * change that: an hour that a zone leaves out is in no window, and an hour that it has twice is inside twice. The
 * result holds until the clock reaches the next edge of a window or is changed. Such stretches are worked out once, because
 * each takes a tenth of a millisecond for its look-ups of local time, and a forecast asks for many of them with each batch.
 */
import type { ScheduleConfig, Weekday } from "../../config/upstreams.ts";

const MINUTE_MS = 60_000;
const DAY_MINUTES = 24 * 60;
const DAY_MS = DAY_MINUTES * MINUTE_MS;
const WEEK_MINUTES = 7 * DAY_MINUTES;
/** Days since 1970 begin on a Thursday. */
const DAYS_FROM_MONDAY = 3;
const WEEK = [
  "mon",
  "tue",
  "wed",
  "thu",
  "fri",
  "sat",
  "sun",
] as const satisfies readonly Weekday[];
/** The number of windows ahead that are examined: no batch has as many. */
const MAX_HOPS = 100;
/** A window opens at least once a week, but a change of the clock may skip it. */
const MAX_LOOK_AHEAD_MS = 60 * DAY_MS;
/** The stretches that are kept, for a start of work that lies ahead and for what follows it. */
const MAX_KEPT = 2 * MAX_HOPS;

/** Minutes of a week that begins on Monday; `end` may lie in the week after. */
interface Span {
  readonly start: number;
  readonly end: number;
}

/** The concurrency from an instant on, up to but not including another. */
interface Stretch {
  readonly fromMs: number;
  readonly untilMs: number;
  readonly concurrency: number;
}

export class Schedule {
  readonly #wall: WallClock;
  readonly #spans: readonly Span[];
  /** The minutes at which a day or a window begins or ends, and the concurrency may change. */
  readonly #edges: readonly number[];
  readonly #inside: number;
  readonly #outside: number;
  /** Stretches that follow each other. */
  #stretches: Stretch[] = [];

  constructor(config: ScheduleConfig, maxConcurrency: number) {
    this.#wall = new WallClock(config.time_zone);
    this.#spans = config.windows.flatMap(spansOf);
    this.#edges = this.#spans.flatMap(({ start, end }) => [start, end % WEEK_MINUTES]);
    this.#inside = Math.min(config.concurrency_inside ?? maxConcurrency, maxConcurrency);
    this.#outside = Math.min(config.concurrency_outside, maxConcurrency);
  }

  concurrencyAt(nowMs: number): number {
    return this.#stretchAt(nowMs).concurrency;
  }

  /** Returns when {@link concurrencyAt} may next differ. */
  changesAtMs(nowMs: number): number {
    return this.#stretchAt(nowMs).untilMs;
  }

  /** Returns the next instant at which {@link concurrencyAt} differs; null when it does not in the next weeks. */
  nextChange(nowMs: number): { readonly atMs: number; readonly concurrency: number } | null {
    const present = this.concurrencyAt(nowMs);
    for (let place = 1; ; place++) {
      const { fromMs, concurrency } = this.#stretchNumber(place);
      if (fromMs > nowMs + MAX_LOOK_AHEAD_MS) return null;
      if (concurrency !== present) return { atMs: fromMs, concurrency };
    }
  }

  /** Returns now, or the next instant with a concurrency above 0; Infinity if there is none. */
  opensAtMs(nowMs: number): number {
    if (this.concurrencyAt(nowMs) > 0) return nowMs;
    return this.nextChange(nowMs)?.atMs ?? Number.POSITIVE_INFINITY;
  }

  /** Returns when so much work is done that starts then and rests while there is no concurrency. */
  endOfWork(startAtMs: number, workMs: number): number {
    const first = this.#placeOf(startAtMs);
    let leftMs = workMs;
    let atMs = startAtMs;
    for (let hops = 0; hops < MAX_HOPS; hops++) {
      const { concurrency, untilMs } = this.#stretchNumber(first + hops);
      const hereMs = concurrency > 0 ? untilMs - atMs : 0;
      if (hereMs >= leftMs) break;
      leftMs -= hereMs;
      atMs = untilMs;
    }
    return atMs + leftMs;
  }

  #stretchAt(nowMs: number): Stretch {
    const place = this.#placeOf(nowMs);
    if (place > 0) this.#stretches.splice(0, place);
    return this.#stretchNumber(0);
  }

  /** Returns which of the stretches an instant is in. One before them, or far behind them, begins others. */
  #placeOf(atMs: number): number {
    const [first] = this.#stretches;
    let place = 0;
    if (first !== undefined && first.fromMs <= atMs) {
      while (place < MAX_KEPT && this.#stretchNumber(place).untilMs <= atMs) place++;
      if (place < MAX_KEPT) return place;
    }
    this.#stretches = [this.#workOut(atMs)];
    return 0;
  }

  #stretchNumber(place: number): Stretch {
    for (let count = this.#stretches.length; count <= place; count++) {
      this.#stretches.push(this.#workOut((this.#stretches[count - 1] as Stretch).untilMs));
    }
    return this.#stretches[place] as Stretch;
  }

  #workOut(nowMs: number): Stretch {
    const offsetMs = this.#wall.offsetMsAt(nowMs);
    const minute = minuteOfWeek(nowMs + offsetMs);
    const isInside = this.#spans.some(
      ({ start, end }) =>
        (start <= minute && minute < end) ||
        (start <= minute + WEEK_MINUTES && minute + WEEK_MINUTES < end),
    );
    return {
      fromMs: nowMs,
      untilMs: this.#wall.firstChangeMs(nowMs, this.#nextEdgeMs(nowMs, offsetMs)),
      concurrency: isInside ? this.#inside : this.#outside,
    };
  }

  /**
   * Returns the next edge if the clock is not changed before. It looks a day ahead at the most, so that two changes
   * of the clock cannot cancel each other unnoticed.
   */
  #nextEdgeMs(nowMs: number, offsetMs: number): number {
    const minute = minuteOfWeek(nowMs + offsetMs);
    const minutesAhead = this.#edges.reduce((least, edge) => {
      const ahead = (edge - minute + WEEK_MINUTES) % WEEK_MINUTES || WEEK_MINUTES;
      return Math.min(least, ahead);
    }, DAY_MINUTES);
    return Math.floor(nowMs / MINUTE_MS) * MINUTE_MS + minutesAhead * MINUTE_MS;
  }
}

type Window = ScheduleConfig["windows"][number];

/** Returns one span for each day on which the window begins. It ends at the first `to` after its beginning. */
function spansOf({ days, from, to }: Window): Span[] {
  const fromMinute = minuteOfDay(from);
  const toMinute = minuteOfDay(to);
  const daysLater = Math.floor((fromMinute - toMinute) / DAY_MINUTES) + 1;
  const lastMinutes = toMinute + daysLater * DAY_MINUTES;
  return (days ?? WEEK).map((day) => {
    const midnight = WEEK.indexOf(day) * DAY_MINUTES;
    const start = midnight + fromMinute;
    const end = midnight + lastMinutes;
    // A window from 24:00 on Sunday begins at 00:00 on Monday.
    return start < WEEK_MINUTES
      ? { start, end }
      : { start: start - WEEK_MINUTES, end: end - WEEK_MINUTES };
  });
}

const minuteOfDay = (time: string) => Number(time.slice(0, 2)) * 60 + Number(time.slice(3));

function minuteOfWeek(wallMs: number): number {
  const minutes = Math.floor(wallMs / MINUTE_MS) + DAYS_FROM_MONDAY * DAY_MINUTES;
  return ((minutes % WEEK_MINUTES) + WEEK_MINUTES) % WEEK_MINUTES;
}

/** The local clock of a zone, as the milliseconds that it is ahead of UTC. */
class WallClock {
  readonly #format: Intl.DateTimeFormat;

  constructor(timeZone: string) {
    this.#format = new Intl.DateTimeFormat("en-US", {
      timeZone,
      calendar: "gregory",
      hourCycle: "h23",
      year: "numeric",
      month: "numeric",
      day: "numeric",
      hour: "numeric",
      minute: "numeric",
      second: "numeric",
    });
  }

  offsetMsAt(atMs: number): number {
    const parts: Partial<Record<Intl.DateTimeFormatPartTypes, number>> = {};
    for (const { type, value } of this.#format.formatToParts(atMs)) parts[type] = Number(value);
    const { year = 0, month = 1, day = 1, hour = 0, minute = 0, second = 0 } = parts;
    return Date.UTC(year, month - 1, day, hour, minute, second) - Math.floor(atMs / 1_000) * 1_000;
  }

  /**
   * Returns the minute after `fromMs` in which the clock is changed, or `toMs` when there is no change before it.
   */
  firstChangeMs(fromMs: number, toMs: number): number {
    const offsetMs = this.offsetMsAt(fromMs);
    if (this.offsetMsAt(toMs - 1) === offsetMs) return toMs;
    let before = Math.floor(fromMs / MINUTE_MS);
    let after = Math.ceil(toMs / MINUTE_MS);
    while (after - before > 1) {
      const middle = Math.floor((before + after) / 2);
      if (this.offsetMsAt(middle * MINUTE_MS) === offsetMs) before = middle;
      else after = middle;
    }
    return after * MINUTE_MS;
  }
}
