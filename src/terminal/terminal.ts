/**
 * Writes to people. Names of files, ids, answers and messages of a server are hostile text: a terminal would obey the
 * escape sequences in them. So everything that these functions write to a terminal passes `printable`.
 */
import { readFileSync } from "node:fs";
import { styleText } from "node:util";
import { isDumbTerminal } from "../config/client.ts";
import { printable } from "../printable.ts";

type Style = Parameters<typeof styleText>[0];

/** Colours printable text. `styleText` leaves the colour out where the stream is no terminal, or NO_COLOR is set. */
export const styled = (style: Style, text: string, stream: NodeJS.WriteStream = process.stdout) =>
  styleText(style, text, { stream });

/** Writes one line of output. */
export const say = (line: string) => void process.stdout.write(`${line}\n`);

/** Writes one line for people beside the output. */
export const note = (line: string) => void process.stderr.write(`${line}\n`);

export const complain = (line: string) => note(`batchd: ${printable(line)}`);

/** Writes an object as one line of JSON. */
export function sayJson(value: unknown): void {
  const json = JSON.stringify(value);
  say(process.stdout.isTTY ? printable(json) : json);
}

export const isOutputTerminal = (): boolean => process.stdout.isTTY === true;

/** Returns whether a progress bar can move on standard error. */
export const canMove = (): boolean => process.stderr.isTTY === true && !isDumbTerminal();

/** What Linux says of a process without a controlling terminal. */
const NO_GROUP = "-1";

/**
 * Returns whether this command may draw on the terminal, which belongs to a shell while the command is in the background.
 * It returns true on other systems than Linux, and without a controlling terminal.
 */
export function isInForeground(): boolean {
  try {
    const status = readFileSync("/proc/self/stat", "utf8");
    // The name of the command, in parentheses, may have spaces.
    const fields = status.slice(status.lastIndexOf(")") + 2).split(" ");
    const [, , group, , , foregroundGroup] = fields;
    return foregroundGroup === NO_GROUP || group === foregroundGroup;
  } catch {
    return true;
  }
}

interface Stops {
  /** Gives the terminal back. */
  readonly leave: () => void;
  /** Takes the terminal again. */
  readonly enter: () => void;
}

/** Calls these before Ctrl-Z stops the process and when it goes on. Returns a function that ends this. */
export function onStops({ leave, enter }: Stops): () => void {
  const stop = () => {
    leave();
    // Without a listener the signal stops the process.
    process.off("SIGTSTP", stop);
    process.kill(process.pid, "SIGTSTP");
  };
  const goOn = () => {
    process.off("SIGTSTP", stop);
    process.on("SIGTSTP", stop);
    enter();
  };
  process.on("SIGTSTP", stop);
  process.on("SIGCONT", goOn);
  return () => {
    process.off("SIGTSTP", stop);
    process.off("SIGCONT", goOn);
  };
}

/** A longer cell makes its own row wider, and not all others. The longest ids, those of deliveries, have 41 characters. */
const MAX_COLUMN_WIDTH = 48;

/** Writes rows in columns. The last column may have any text, because nothing stands behind it. */
export function sayTable(head: readonly string[], rows: readonly (readonly string[])[]): void {
  const all = [head, ...rows].map((row) => row.map(printable));
  const widthOf = (cell = "") => (cell.length > MAX_COLUMN_WIDTH ? 0 : cell.length);
  const widths = head.map((_, i) => Math.max(...all.map((row) => widthOf(row[i]))));
  for (const [at, row] of all.entries()) {
    const line = row.map((cell, i) => (i === row.length - 1 ? cell : cell.padEnd(widths[i] ?? 0)));
    const text = line.join("  ").trimEnd();
    say(at === 0 ? styled("bold", text) : text);
  }
}
