/** Formats the output of the demo: aligned text of at most 96 columns, with colour only on a terminal. */
import { stripVTControlCharacters, styleText } from "node:util";
import { Presets, SingleBar } from "cli-progress";

const COLUMNS = 96;
const INDENT = "  ";
const LABEL_COLUMNS = 13;
const BAR_COLUMNS = 36;
const PLAIN_PROGRESS_EVERY_MS = 1_000;

const isTerminal = process.stdout.isTTY === true;

/** Colours a text. `styleText` leaves the colour out where the output is no terminal, or NO_COLOR is set. */
const paint = (style: "bold" | "dim" | "cyan" | "green" | "yellow" | "red", text: string) =>
  styleText(style, text, { stream: process.stdout });

export const dim = (text: string) => paint("dim", text);
export const good = (text: string) => paint("green", text);
export const warn = (text: string) => paint("yellow", text);
export const bad = (text: string) => paint("red", text);

export const print = (text = "") => process.stdout.write(`${text}\n`);

export function title(text: string, subtitle: string): void {
  print(`\n${INDENT}${paint("bold", text)}\n${INDENT}${dim(subtitle)}\n`);
}

export function heading(text: string): void {
  print(`\n${INDENT}${paint("bold", text)}`);
}

/** Prints a label and its text. A long text continues under its own column. */
export function row(label: string, text: string): void {
  const indent = " ".repeat(INDENT.length + LABEL_COLUMNS);
  const [first = "", ...rest] = wrap(text, COLUMNS - indent.length);
  print(`${INDENT}${paint("cyan", label.padEnd(LABEL_COLUMNS))}${first}`);
  for (const line of rest) print(`${indent}${line}`);
}

function wrap(text: string, columns: number): string[] {
  const lines: string[] = [];
  let line = "";
  for (const word of text.split(" ")) {
    const longer = line === "" ? word : `${line} ${word}`;
    if (line !== "" && stripVTControlCharacters(longer).length > columns) {
      lines.push(line);
      line = word;
    } else line = longer;
  }
  return [...lines, line];
}

export const count = (value: number) => value.toLocaleString("en-US");

export const bytes = (value: number) =>
  value < 1_000 ? `${value} bytes` : `${(value / 1_000).toFixed(1)} kB`;

export const seconds = (ms: number) => `${(ms / 1_000).toFixed(1)} s`;

export interface Progress {
  update(done: number, failed: number): void;
  stop(): void;
}

/** Shows a bar on a terminal, and a plain line every second in a log file. */
export function progress(label: string, total: number): Progress {
  return isTerminal ? liveBar(label, total) : plainLines(label, total);
}

function liveBar(label: string, total: number): Progress {
  const start = `${INDENT}${paint("cyan", label.padEnd(LABEL_COLUMNS))}`;
  const bar = new SingleBar(
    {
      format: `${start}{bar}  {done}/{total} lines, {failed} failed  {elapsed}`,
      formatBar: (share) => barOf(share),
      hideCursor: true,
      gracefulExit: true,
      stopOnComplete: false,
    },
    Presets.legacy,
  );
  const startedAtMs = Date.now();
  const fields = (done: number, failed: number) => ({
    done: String(done).padStart(String(total).length),
    failed,
    elapsed: dim(seconds(Date.now() - startedAtMs)),
  });
  bar.start(total, 0, fields(0, 0));
  return {
    update: (done, failed) => bar.update(done, fields(done, failed)),
    stop: () => bar.stop(),
  };
}

function barOf(share: number): string {
  const done = Math.round(share * BAR_COLUMNS);
  return paint("green", "━".repeat(done)) + dim("━".repeat(BAR_COLUMNS - done));
}

function plainLines(label: string, total: number): Progress {
  let printedAtMs = 0;
  let latest = "";
  let printed = "";
  const show = () => {
    if (latest === printed) return;
    row(label, latest);
    printed = latest;
    printedAtMs = Date.now();
  };
  return {
    update: (done, failed) => {
      latest = `${done}/${total} lines, ${failed} failed`;
      if (Date.now() - printedAtMs >= PLAIN_PROGRESS_EVERY_MS) show();
    },
    stop: show,
  };
}
