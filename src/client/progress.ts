/**
 * Shows how a batch gets on, on standard error: a bar that moves in a terminal, else a line now and then. The library of
 * the bar knows the width of the terminal and hides the cursor; the texts in it are ours.
 */
import { MultiBar, Presets, type SingleBar } from "cli-progress";
import type { Clock } from "../clock.ts";
import { printable } from "../printable.ts";
import { note } from "../terminal/lines.ts";
import { canRedraw, isInForeground, onStops } from "../terminal/terminal.ts";
import { count, duration, rate } from "../words.ts";
import type { View } from "./follow.ts";
import { costOf, progressOf, type ShownBatch, statusText, whyItWaits } from "./shown-batch.ts";

/** A line of plain progress comes at most this often, apart from changes of the status. */
const PLAIN_EVERY_MS = 10_000;
/** The rate is measured over this time. */
const RATE_OVER_MS = 30_000;
/** The bar gives way to the text beside it in a narrow terminal. */
const BAR_COLUMNS = { most: 24, least: 4 };
/** The width of a terminal that does not say it: serial lines and some containers report 0. */
const USUAL_COLUMNS = 80;

type WhyItWaits = (batch: ShownBatch) => string | null;

export const openView = (clock: Clock, why: WhyItWaits = whyItWaits): View =>
  canRedraw() ? new BarView(clock, why) : new PlainView(clock, why);

/** A view for machines: it shows nothing but each state that differs from the one before. */
export const jsonView = (write: (batch: ShownBatch) => void): View => {
  let latest = "";
  return {
    show: (batch) => {
      const json = JSON.stringify(batch);
      if (json !== latest) write(batch);
      latest = json;
    },
    showTrouble: (problem) => note(`batchd: ${printable(problem)}; trying again`),
    close: () => {},
  };
};

const doneOf = ({ request_counts: counts }: ShownBatch) =>
  counts ? counts.completed + counts.failed : 0;

/** Measures the lines per second between looks. */
class RateMeter {
  readonly #clock: Clock;
  readonly #looks: { atMs: number; done: number }[] = [];

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Returns null until there is something to measure. */
  measure(batch: ShownBatch): number | null {
    const now = { atMs: this.#clock.elapsedMs(), done: doneOf(batch) };
    this.#looks.push(now);
    while ((this.#looks[1]?.atMs ?? now.atMs) < now.atMs - RATE_OVER_MS) this.#looks.shift();
    const first = this.#looks[0] ?? now;
    const seconds = (now.atMs - first.atMs) / 1000;
    return seconds < 0.5 || now.done <= first.done ? null : (now.done - first.done) / seconds;
  }
}

/** Returns the parts of the text beside the bar. */
function detailsOf(batch: ShownBatch, linesPerSecond: number | null, nowMs: number): string[] {
  const { request_counts: counts, x_batchd: more } = batch;
  const left = (counts?.total ?? 0) - doneOf(batch);
  const secondsByRate = linesPerSecond === null ? null : left / linesPerSecond;
  const secondsLeft = more?.eta ? more.eta - nowMs / 1000 : secondsByRate;
  return [
    linesPerSecond === null ? "" : rate(linesPerSecond),
    left > 0 && secondsLeft !== null && secondsLeft > 0 ? `${duration(secondsLeft)} left` : "",
    more?.at_risk ? "may miss its window" : "",
    costOf(batch) ?? "",
  ].filter((part) => part !== "");
}

/** The news of a batch: a text that changes when its status does, or the reason why it waits. */
const newsOf = (batch: ShownBatch, why: string | null): string =>
  `${printable(batch.id)} ${statusText(batch, process.stderr)}${why === null ? "" : `, ${printable(why)}`}`;

/** The cursor shown and lines wrapped, as a shell wants them, and neither, as the library has them. */
const WRAPPED = "\u001b[?7h";
const NOT_WRAPPED = "\u001b[?7l";
const SHELL_TERMINAL = `\u001b[?25h${WRAPPED}`;
const BAR_TERMINAL = `\u001b[?25l${NOT_WRAPPED}`;

/**
 * Draws nothing in the background, and nothing while a terminal is stopped (Ctrl-S), as the frames would pile up in memory.
 */
class Bars extends MultiBar {
  readonly #endStops = onStops({
    leave: () => process.stderr.write(SHELL_TERMINAL),
    enter: () => {
      if (!isInForeground()) return;
      process.stderr.write(BAR_TERMINAL);
      this.update();
    },
  });

  override stop(): void {
    this.#endStops();
    if (isInForeground()) super.stop();
  }

  override update(): void {
    if (!process.stderr.writableNeedDrain && isInForeground()) super.update();
  }
}

interface Texts {
  readonly counts: string;
  readonly details: string;
}

/** Returns the bar with its text, cut to the width that the terminal has now. */
function frame(share: number, { counts, details }: Texts): string {
  const columns = process.stderr.columns || USUAL_COLUMNS;
  const text = ` ${Math.floor(share * 100)}%  ${counts}  ${details}`.trimEnd();
  const { most, least } = BAR_COLUMNS;
  const size = Math.max(least, Math.min(most, columns - text.length));
  const done = Math.round(size * share);
  const line = `${"\u2588".repeat(done)}${"\u2591".repeat(size - done)}${text}`;
  return line.length <= columns ? line : `${line.slice(0, columns - 1)}…`;
}

class BarView implements View {
  readonly #clock: Clock;
  readonly #why: WhyItWaits;
  readonly #meter: RateMeter;
  #news = "";
  #trouble = "";
  #bars: Bars | null = null;
  #bar: SingleBar | null = null;

  constructor(clock: Clock, why: WhyItWaits) {
    this.#clock = clock;
    this.#why = why;
    this.#meter = new RateMeter(clock);
  }

  show(batch: ShownBatch): void {
    const news = newsOf(batch, this.#why(batch));
    if (news !== this.#news || this.#trouble !== "") this.#log(news);
    this.#news = news;
    this.#trouble = "";
    const total = batch.request_counts?.total ?? 0;
    if (total === 0 || !isInForeground()) return;
    const failed = batch.request_counts?.failed ?? 0;
    const details = detailsOf(batch, this.#meter.measure(batch), this.#clock.nowMs());
    if (failed > 0) details.unshift(`${count(failed)} failed`);
    const payload = {
      counts: `${count(doneOf(batch))}/${count(total)}`,
      details: printable(details.join("  ")),
    };
    this.#bar ??= this.#open().create(total, doneOf(batch), payload);
    this.#bar.setTotal(total);
    this.#bar.update(doneOf(batch), payload);
    // A frame that was left out was the last one.
    this.#bars?.update();
  }

  showTrouble(problem: string): void {
    if (problem !== this.#trouble) this.#log(`${printable(problem)}; trying again`);
    this.#trouble = problem;
  }

  close(): void {
    this.#bars?.update();
    this.#bars?.stop();
  }

  #open(): Bars {
    this.#bars ??= new Bars(
      {
        ...Presets.shades_classic,
        format: (_, { progress }, payload) => frame(progress, payload as Texts),
        hideCursor: true,
        linewrap: false,
        stream: process.stderr,
        // The command handles signals itself.
        gracefulExit: false,
        emptyOnZero: true,
        // A line above the bar, or a shell after Ctrl-Z, has taken its place.
        forceRedraw: true,
      },
      Presets.shades_classic,
    );
    return this.#bars;
  }

  /** Writes a line above the bar. It has the reason of a wait at its end, so it goes on in the next row where it is long. */
  #log(line: string): void {
    if (this.#bars === null || !isInForeground()) note(line);
    else this.#bars.log(`${WRAPPED}${line}${NOT_WRAPPED}\n`);
  }
}

class PlainView implements View {
  readonly #clock: Clock;
  readonly #why: WhyItWaits;
  readonly #meter: RateMeter;
  #news = "";
  #progress = "";
  #writtenAtMs = Number.NEGATIVE_INFINITY;
  #trouble = "";

  constructor(clock: Clock, why: WhyItWaits) {
    this.#clock = clock;
    this.#why = why;
    this.#meter = new RateMeter(clock);
  }

  show(batch: ShownBatch): void {
    const linesPerSecond = this.#meter.measure(batch);
    const news = newsOf(batch, this.#why(batch));
    const progress = progressOf(batch);
    const isNews = news !== this.#news || this.#trouble !== "";
    const isDue = this.#clock.elapsedMs() - this.#writtenAtMs >= PLAIN_EVERY_MS;
    if (!isNews && (progress === this.#progress || !isDue)) return;
    const details = detailsOf(batch, linesPerSecond, this.#clock.nowMs());
    note([news, progress, ...details.map(printable)].join("  "));
    this.#news = news;
    this.#progress = progress;
    this.#writtenAtMs = this.#clock.elapsedMs();
    this.#trouble = "";
  }

  showTrouble(problem: string): void {
    if (problem !== this.#trouble) note(`batchd: ${printable(problem)}; trying again`);
    this.#trouble = problem;
  }

  close(): void {}
}
