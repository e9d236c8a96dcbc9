/** The options that several commands share, and how their texts become values. */
import { type Command, InvalidArgumentError, Option } from "commander";

/** The same as in results.ts, which is loaded only when it is needed. */
const FORMATS = ["jsonl", "csv"];

export const withServer = (command: Command): Command =>
  command.option("--url <url>", "the server (BATCHD_URL)");

export const withJson = (command: Command, text = "print JSON, for other programs"): Command =>
  command.option("--json", text);

export const withFormat = (command: Command): Command =>
  command.addOption(
    new Option("--format <format>", "of the results: JSON lines as they are, or a table")
      .choices(FORMATS)
      .default("jsonl"),
  );

export function wholeNumber(min: number) {
  return (text: string): number => {
    const value = Number(text);
    if (/^-?\d+$/.test(text) && Number.isSafeInteger(value) && value >= min) return value;
    throw new InvalidArgumentError(
      Number.isFinite(min) ? `Expected a whole number from ${min}.` : "Expected a whole number.",
    );
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
