/** Turns a line of the log, which is JSON, into a line for a person: the time of day, the event and its fields. */
import { printable } from "../printable.ts";

/** A text that needs no quotes to be told apart from the next field. */
const PLAIN = /^[\w./:@+-]+$/;

export function readableLine(json: string): string {
  const { time, level, event, ...fields } = JSON.parse(json) as Record<string, unknown>;
  const shown = Object.entries(fields).map(([name, value]) => `${name}=${textOf(value)}`);
  const mark = level === "info" ? [] : [String(level).toUpperCase()];
  const words = [String(time).slice(11, 19), ...mark, String(event), ...shown];
  return `${printable(words.join(" "))}\n`;
}

const textOf = (value: unknown): string =>
  typeof value === "string" && PLAIN.test(value) ? value : JSON.stringify(value);
