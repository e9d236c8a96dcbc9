import fc from "fast-check";
import { describe, expect, test, vi } from "vitest";
import { type ScheduleConfig, WEEKDAYS, type Weekday } from "../../../src/config/upstreams.ts";
import { Schedule } from "../../../src/upstream/capacity/schedule.ts";

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;
const INSIDE = 40;
const OUTSIDE = 0;

type Window = ScheduleConfig["windows"][number];

const scheduleOf = (time_zone: string, ...windows: Window[]) =>
  new Schedule(
    { time_zone, windows, concurrency_inside: INSIDE, concurrency_outside: OUTSIDE },
    64,
  );
const utc = (text: string) => Date.parse(`${text}Z`);
const shown = (atMs: number) => new Date(atMs).toISOString().slice(0, 16);

describe("work ends", () => {
  const schedule = scheduleOf("UTC", { from: "22:00", to: "02:00" });
  const endOf = (start: string, hours: number) =>
    shown(schedule.endOfWork(utc(start), hours * HOUR_MS));

  test.each([
    ["2026-03-04T22:00", 3, "2026-03-05T01:00"],
    ["2026-03-04T23:00", 3, "2026-03-05T02:00"],
    ["2026-03-04T23:00", 5, "2026-03-06T00:00"],
    ["2026-03-04T12:00", 1, "2026-03-04T23:00"],
    ["2026-03-04T12:00", 9, "2026-03-06T23:00"],
    ["2026-03-04T23:00", 0, "2026-03-04T23:00"],
  ])(
    "that begins at %s and takes %i hours, with the hours that are closed: %s",
    (start, hours, end) => {
      expect(endOf(start, hours)).toBe(end);
    },
  );

  test("as it began where no hours are closed", () => {
    const always = scheduleOf("UTC", { from: "00:00", to: "24:00" });
    expect(always.endOfWork(utc("2026-03-04T12:00"), 50 * HOUR_MS)).toBe(utc("2026-03-06T14:00"));
  });
});

describe("batch lines go", () => {
  test("within a window, from its first minute up to its last", () => {
    const schedule = scheduleOf("UTC", { from: "22:30", to: "23:45" });
    const at = (time: string) => schedule.concurrencyAt(utc(`2026-03-04T${time}`));
    expect([at("22:29:59.999"), at("22:30"), at("23:44:59.999"), at("23:45")]).toEqual([
      0, 40, 40, 0,
    ]);
  });

  test("over midnight in a window that begins on one of its days, and not on the day before", () => {
    const schedule = scheduleOf("UTC", { days: ["fri"], from: "20:00", to: "06:00" });
    // 2026-03-06 is a Friday.
    const at = (text: string) => schedule.concurrencyAt(utc(text));
    expect(at("2026-03-06T05:00")).toBe(OUTSIDE);
    expect(at("2026-03-06T20:00")).toBe(INSIDE);
    expect(at("2026-03-07T05:59")).toBe(INSIDE);
    expect(at("2026-03-07T06:00")).toBe(OUTSIDE);
    expect(at("2026-03-07T20:00")).toBe(OUTSIDE);
  });

  test("from Sunday night into Monday, which is another week", () => {
    const schedule = scheduleOf("UTC", { days: ["sun"], from: "23:00", to: "02:00" });
    expect(schedule.concurrencyAt(utc("2026-03-09T01:59"))).toBe(INSIDE);
    expect(schedule.concurrencyAt(utc("2026-03-09T02:00"))).toBe(OUTSIDE);
    const midnight = scheduleOf("UTC", { days: ["sun"], from: "24:00", to: "02:00" });
    expect(midnight.concurrencyAt(utc("2026-03-08T23:59"))).toBe(OUTSIDE);
    expect(midnight.concurrencyAt(utc("2026-03-09T00:00"))).toBe(INSIDE);
  });

  test("until the end of the day when the window ends at 24:00", () => {
    const schedule = scheduleOf("UTC", { days: ["sat", "sun"], from: "00:00", to: "24:00" });
    expect(shown(schedule.opensAtMs(utc("2026-03-04T12:00")))).toBe("2026-03-07T00:00");
    expect(schedule.concurrencyAt(utc("2026-03-08T23:59"))).toBe(INSIDE);
    expect(schedule.concurrencyAt(utc("2026-03-09T00:00"))).toBe(OUTSIDE);
  });

  test("for a whole day when a window ends at the minute at which it begins", () => {
    const schedule = scheduleOf("UTC", { days: ["wed"], from: "08:00", to: "08:00" });
    expect(schedule.concurrencyAt(utc("2026-03-04T07:59"))).toBe(OUTSIDE);
    expect(schedule.concurrencyAt(utc("2026-03-04T08:00"))).toBe(INSIDE);
    expect(schedule.concurrencyAt(utc("2026-03-05T07:59"))).toBe(INSIDE);
    expect(schedule.concurrencyAt(utc("2026-03-05T08:00"))).toBe(OUTSIDE);
  });

  test("for the whole next day when a window goes from the end of its day to the start of a day", () => {
    const schedule = scheduleOf("UTC", { days: ["wed"], from: "24:00", to: "00:00" });
    expect(shown(schedule.opensAtMs(utc("2026-03-04T12:00")))).toBe("2026-03-05T00:00");
    expect(schedule.concurrencyAt(utc("2026-03-05T23:59"))).toBe(INSIDE);
    expect(schedule.concurrencyAt(utc("2026-03-06T00:00"))).toBe(OUTSIDE);
  });

  test("by the clock of the time zone, in summer and in winter", () => {
    const schedule = scheduleOf("Europe/Berlin", { from: "20:00", to: "06:00" });
    expect(shown(schedule.opensAtMs(utc("2026-01-15T12:00")))).toBe("2026-01-15T19:00");
    expect(shown(schedule.opensAtMs(utc("2026-07-15T12:00")))).toBe("2026-07-15T18:00");
  });

  test("an hour longer or shorter in the night in which the clock is changed", () => {
    const schedule = scheduleOf("America/New_York", { from: "00:00", to: "06:00" });
    const lastsMs = (date: string, utcHour: string) => {
      const opensAtMs = utc(`${date}T${utcHour}:00`);
      let atMs = opensAtMs;
      while (schedule.concurrencyAt(atMs) > 0) atMs = schedule.changesAtMs(atMs);
      expect(schedule.concurrencyAt(opensAtMs - 1)).toBe(OUTSIDE);
      return atMs - opensAtMs;
    };
    expect(lastsMs("2026-03-08", "05")).toBe(5 * HOUR_MS);
    expect(lastsMs("2026-03-09", "04")).toBe(6 * HOUR_MS);
    expect(lastsMs("2026-11-01", "04")).toBe(7 * HOUR_MS);
  });

  test("not at all in a window within the hour that is left out, and then a week later", () => {
    const schedule = scheduleOf("Europe/Berlin", { days: ["sun"], from: "02:15", to: "02:45" });
    expect(shown(schedule.opensAtMs(utc("2026-03-28T12:00")))).toBe("2026-04-05T00:15");
  });
});

describe("how many at once", () => {
  const window = { from: "10:00", to: "11:00" };
  const [inside, outside] = [utc("2026-03-04T10:30"), utc("2026-03-04T12:00")];

  test("is the upstream's maximum within a window and none outside, unless it is said", () => {
    const windows = [window];
    const silent = new Schedule({ time_zone: "UTC", windows, concurrency_outside: 0 }, 64);
    expect([inside, outside].map((atMs) => silent.concurrencyAt(atMs))).toEqual([64, 0]);
  });

  test("is never above the upstream's maximum", () => {
    const config = { time_zone: "UTC", windows: [window], concurrency_inside: 500 };
    const schedule = new Schedule({ ...config, concurrency_outside: 100 }, 64);
    expect([inside, outside].map((atMs) => schedule.concurrencyAt(atMs))).toEqual([64, 64]);
  });

  test("is open at once where lines may go outside of windows too", () => {
    const schedule = new Schedule(
      { time_zone: "UTC", windows: [window], concurrency_outside: 2 },
      64,
    );
    expect(schedule.opensAtMs(outside)).toBe(outside);
  });
});

const ZONES: readonly (readonly [zone: string, ...days: string[]])[] = [
  ["Europe/Berlin", "2026-03-29", "2026-10-25"],
  ["America/New_York", "2026-03-08", "2026-11-01"],
  ["Asia/Kolkata", "2026-05-01"],
  // Left out 30 December 2011, a Friday, altogether.
  ["Pacific/Apia", "2011-12-30", "2012-04-01"],
  ["Australia/Lord_Howe", "2026-04-05"],
  ["UTC", "2026-01-01"],
];

const aTime = fc
  .integer({ min: 0, max: 24 * 12 })
  .map(
    (fives) =>
      `${String(Math.floor(fives / 12)).padStart(2, "0")}:${String((fives % 12) * 5).padStart(2, "0")}`,
  );
const aWindow: fc.Arbitrary<Window> = fc.record(
  { days: fc.subarray([...WEEKDAYS], { minLength: 1 }), from: aTime, to: aTime },
  { requiredKeys: ["from", "to"] },
);
const aWeekSomewhere = fc
  .constantFrom(...ZONES)
  .chain(([zone, ...days]) => fc.tuple(fc.constant(zone), fc.constantFrom(...days)))
  .map(([zone, day]) => ({ zone, startMs: utc(`${day}T00:00`) - 3 * DAY_MS }));

/** Whether the clock on the wall shows a time within the windows, by asking for its text. */
function isOpenByText(zone: string, windows: readonly Window[]): (atMs: number) => boolean {
  const format = new Intl.DateTimeFormat("en-GB", {
    timeZone: zone,
    weekday: "short",
    hour: "2-digit",
    minute: "2-digit",
    hourCycle: "h23",
  });
  return (atMs) => {
    const [weekday = "", time = ""] = format.format(atMs).toLowerCase().split(/,? /);
    const today = WEEKDAYS.indexOf(weekday as Weekday);
    const yesterday = WEEKDAYS[(today + 6) % 7]!;
    return windows.some(({ days = WEEKDAYS, from, to }) => {
      // A window from the end of its day has begun yesterday at the latest, and is open from today's first minute on.
      if (from === "24:00") return days.includes(yesterday) && (time < to || to === "00:00");
      const isToday = days.includes(WEEKDAYS[today]!) && from <= time && (time < to || to <= from);
      const isSinceYesterday = days.includes(yesterday) && to <= from && time < to;
      return isToday || isSinceYesterday;
    });
  };
}

test("in any time zone, through any change of the clock, each minute is what the clock on the wall says", () => {
  fc.assert(
    fc.property(
      aWeekSomewhere,
      fc.array(aWindow, { minLength: 1, maxLength: 3 }),
      (week, windows) => {
        const schedule = scheduleOf(week.zone, ...windows);
        const isOpen = isOpenByText(week.zone, windows);
        let changesAtMs = week.startMs;
        let held = -1;
        for (let atMs = week.startMs; atMs < week.startMs + 7 * DAY_MS; atMs += MINUTE_MS) {
          const expected = isOpen(atMs) ? INSIDE : OUTSIDE;
          if (atMs < changesAtMs) expect([shown(atMs), expected]).toEqual([shown(atMs), held]);
          else {
            held = schedule.concurrencyAt(atMs);
            changesAtMs = schedule.changesAtMs(atMs);
            expect(changesAtMs).toBeGreaterThan(atMs);
            expect([shown(atMs), held]).toEqual([shown(atMs), expected]);
          }
        }
      },
    ),
    { numRuns: 15 },
  );
});

test("from any minute, it opens at the first minute that is open", () => {
  fc.assert(
    fc.property(
      aWeekSomewhere,
      fc.array(aWindow, { minLength: 1, maxLength: 2 }),
      fc.integer({ min: 0, max: 3 * 24 * 60 }),
      (week, windows, minutes) => {
        const schedule = scheduleOf(week.zone, ...windows);
        const isOpen = isOpenByText(week.zone, windows);
        const startMs = week.startMs + minutes * MINUTE_MS;
        let opensAtMs = startMs;
        while (!isOpen(opensAtMs)) opensAtMs += MINUTE_MS;
        expect(shown(schedule.opensAtMs(startMs))).toBe(shown(opensAtMs));
        expect(schedule.concurrencyAt(startMs)).toBe(startMs === opensAtMs ? INSIDE : OUTSIDE);
      },
    ),
    { numRuns: 40 },
  );
});

test("what it was asked before changes no answer, also where the clock is set back or far ahead", () => {
  const minutes = fc.integer({ min: -3 * 24 * 60, max: 90 * 24 * 60 });
  const asked = fc.record({ minutes, hours: fc.integer({ min: 0, max: 48 }) });
  fc.assert(
    fc.property(
      aWeekSomewhere,
      fc.array(aWindow, { minLength: 1, maxLength: 2 }),
      fc.tuple(asked, asked),
      (week, windows, questions) => {
        const answersOf = (schedule: Schedule, { minutes, hours }: (typeof questions)[number]) => {
          const atMs = week.startMs + minutes * MINUTE_MS;
          return [
            shown(schedule.endOfWork(atMs, hours * HOUR_MS)),
            schedule.concurrencyAt(atMs),
            shown(schedule.opensAtMs(atMs)),
            schedule.nextChange(atMs),
          ];
        };
        const kept = scheduleOf(week.zone, ...windows);
        answersOf(kept, questions[0]);
        const anew = scheduleOf(week.zone, ...windows);
        expect(answersOf(kept, questions[1])).toEqual(answersOf(anew, questions[1]));
      },
    ),
    // Each looks weeks ahead, which is some hundred stretches.
    { numRuns: 15 },
  );
});

test("thousands of batches cost no more looks at the local clock than one does", () => {
  const looks = vi.spyOn(Intl.DateTimeFormat.prototype, "formatToParts");
  const schedule = scheduleOf("Europe/Berlin", { from: "20:00", to: "06:00" });
  const startAtMs = utc("2026-03-04T12:00");
  const forecast = () => schedule.endOfWork(startAtMs, 10 * DAY_MS);
  forecast();
  const ofOne = looks.mock.calls.length;
  for (let batch = 0; batch < 5_000; batch++) forecast();
  expect(looks).toHaveBeenCalledTimes(ofOne);
  looks.mockRestore();
});
