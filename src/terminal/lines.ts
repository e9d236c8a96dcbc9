/**
 * Writes lines for people. Names of files, ids, answers and messages of a server are hostile text: a terminal would obey the
 * escape sequences in them. `say` and `note` write a line as it is, because it may have colours, so their caller passes
 * everything that others wrote through `printable`. The other functions do so themselves.
 */
import { styleText } from "node:util";
import { printable } from "../printable.ts";

type Style = Parameters<typeof styleText>[0];

/** Colours printable text. `styleText` leaves the colour out where the stream is no terminal, or NO_COLOR is set. */
export const styled = (style: Style, text: string, stream: NodeJS.WriteStream = process.stdout) =>
  styleText(style, text, { stream });

/** Writes one line of output. */
export const say = (line: string) => void process.stdout.write(`${line}\n`);

/** Writes one line for people beside the output. */
export const note = (line: string) => void process.stderr.write(`${line}\n`);

/** Writes why a command has failed, as one line. */
export const complain = (line: string) => note(`batchd: ${printable(line)}`);

/** Writes an object as one line of JSON. */
export function sayJson(value: unknown): void {
  const json = JSON.stringify(value);
  say(process.stdout.isTTY ? printable(json) : json);
}

/** A longer cell makes its own row wider, and not all others. The longest ids, those of deliveries, have 41 characters. */
const MAX_COLUMN_WIDTH = 48;

/** The spaces between two cells. */
const GAP = "  ";
/** The indent of the further lines of a row that is too wide for the terminal. */
const INDENT = "  ";

/**
 * Writes rows in columns. The last column may have any text, because nothing stands behind it. In a terminal that is too narrow
 * for a row, the columns that have no room stand below the others, as the terminal would break the row within a word.
 */
export function sayTable(head: readonly string[], rows: readonly (readonly string[])[]): void {
  const all = [head, ...rows].map((row) => row.map(printable));
  const widthOf = (cell = "") => (cell.length > MAX_COLUMN_WIDTH ? 0 : cell.length);
  const widths = head.map((_, i) => longest(all, (row) => widthOf(row[i])));
  const last = longest(all, (row) => row.at(-1)?.length ?? 0);
  const starts = startsOfLines(widths.with(-1, last));
  for (const [at, row] of all.entries()) {
    for (const [i, start] of starts.entries()) {
      const end = starts[i + 1] ?? row.length;
      const cells = row.slice(start, end).map((cell, j) => cell.padEnd(widths[start + j] ?? 0));
      const text = `${i === 0 ? "" : INDENT}${cells.join(GAP)}`.trimEnd();
      say(at === 0 ? styled("bold", text) : text);
    }
  }
}

/** A call has no room on the stack for as many arguments as a table may have rows. */
const longest = (rows: readonly (readonly string[])[], of: (row: readonly string[]) => number) =>
  rows.reduce((most, row) => Math.max(most, of(row)), 0);

/** Returns the columns that begin a line, so that no line is wider than the terminal where that can be. */
function startsOfLines(widths: readonly number[]): number[] {
  const room = process.stdout.columns || Number.POSITIVE_INFINITY;
  const starts = [0];
  let used = -GAP.length;
  for (const [i, width] of widths.entries()) {
    used += GAP.length + width;
    if (used <= room || i === starts.at(-1)) continue;
    starts.push(i);
    used = INDENT.length + width;
  }
  return starts;
}
