/** The options that several commands share, and how their texts become values. */
import { type Command, InvalidArgumentError, Option } from "commander";
import { RESULT_FORMATS, type ResultFormat } from "../contract/results.ts";
import { completionWindowMs } from "../contract/window.ts";

export const withServer = (command: Command): Command =>
  command.option("--url <url>", "the server (BATCHD_URL)");

export const withJson = (command: Command, text = "print JSON, for other programs"): Command =>
  command.option("--json", text);

/** Adds `--format`, which the ending of `--output` decides when it is left out: a table is what `answers.csv` promises. */
export const withFormat = (command: Command): Command =>
  command
    .addOption(
      new Option("--format <format>", "of the results: JSON lines as they are, or a table")
        .choices(RESULT_FORMATS)
        .default("jsonl", "by the ending of --output, else jsonl"),
    )
    .hook("preAction", () => {
      if (command.getOptionValueSource("format") !== "default") return;
      const { output } = command.opts<{ output?: string }>();
      command.setOptionValueWithSource("format", usualFormat(output), "implied");
    });

/** Returns the format of results in a file of that name where no option names one. */
export const usualFormat = (output = ""): ResultFormat =>
  RESULT_FORMATS.find((format) => output.toLowerCase().endsWith(`.${format}`)) ?? "jsonl";

/** Refuses what is no id, such as an empty variable of a script: without an id, the request would be one for the list. */
export function id(text: string): string {
  if (!/^\s*\.{0,2}\s*$/.test(text)) return text;
  throw new InvalidArgumentError("Expected an id.");
}

/** Refuses an empty name of a file, such as an empty variable of a script: it would be the folder of the command. */
export function fileName(text: string): string {
  if (text !== "") return text;
  throw new InvalidArgumentError("Expected the name of a file.");
}

/** Refuses an empty name, such as an empty variable of a script. */
export function modelName(text: string): string {
  if (text.trim() !== "") return text;
  throw new InvalidArgumentError("Expected the name of a model.");
}

/** Each server allows some windows of this form. */
export function window(text: string): string {
  if (completionWindowMs(text) !== null) return text;
  throw new InvalidArgumentError("Expected hours or days, at most 30 days, such as 24h or 7d.");
}

export function wholeNumber(min: number, max = Number.MAX_SAFE_INTEGER) {
  return (text: string): number => {
    const value = Number(text);
    if (/^-?\d+$/.test(text) && value >= min && value <= max) return value;
    const upTo = max === Number.MAX_SAFE_INTEGER ? "" : ` to ${max}`;
    throw new InvalidArgumentError(`Expected a whole number from ${min}${upTo}.`);
  };
}

/** Collects `key=value`, which may be given several times. */
export function keyValue(
  text: string,
  before: Readonly<Record<string, string>> = {},
): Record<string, string> {
  const at = text.indexOf("=");
  if (at < 1) throw new InvalidArgumentError("Expected key=value.");
  return { ...before, [text.slice(0, at)]: text.slice(at + 1) };
}

export function amount(text: string): string {
  if (/^\d{1,12}(?:\.\d{1,12})?$/.test(text)) return text;
  throw new InvalidArgumentError("Expected an amount such as 5.00.");
}

/** Reads a date, which is taken to be in UTC unless it says otherwise, or Unix seconds. */
export function unixSeconds(text: string): number {
  const seconds = /^\d+$/.test(text) ? Number(text) : Math.floor(dateMs(text) / 1000);
  if (Number.isSafeInteger(seconds) && seconds >= 0) return seconds;
  throw new InvalidArgumentError(
    "Expected a date such as 2026-01-31 or 2026-01-31T08:00Z, or Unix seconds.",
  );
}

/** JavaScript takes a date with a time, but without a zone, to be in the zone of this machine. */
function dateMs(text: string): number {
  const inUtc = Date.parse(`${text}Z`);
  return Number.isNaN(inUtc) ? Date.parse(text) : inUtc;
}
