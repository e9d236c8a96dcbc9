/** Prints what the commands on this machine say to people, and names the codes with which they end. */
import { printableLines } from "../printable.ts";

export const OK = 0;
export const FAILED = 1;

/**
 * Writes one or more lines of output. A terminal must not obey what a configuration or a name has in them; a pipe gets them as
 * they are.
 */
export const sayLines = (line: string) =>
  process.stdout.write(`${process.stdout.isTTY ? printableLines(line) : line}\n`);

/** Writes why a command has failed; it may have several lines. */
export const complainInLines = (line: string) =>
  process.stderr.write(`batchd: ${printableLines(line)}\n`);

/** Prints why a command has failed; returns the exit code. */
export function fail(problem: string): number {
  complainInLines(problem);
  return FAILED;
}

/** Prints the problems of a configuration; returns the exit code. */
export function complainAbout(problems: readonly string[]): number {
  const [first] = problems;
  if (problems.length === 1) {
    complainInLines(`the configuration has a problem: ${first}`);
  } else {
    complainInLines(`the configuration has ${problems.length} problems:`);
    for (const problem of problems) process.stderr.write(`  - ${printableLines(problem)}\n`);
  }
  return FAILED;
}
