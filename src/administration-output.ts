/** What the commands for keys and for projects share: how they begin, and what they print. */
import type { Command } from "commander";
import type { Administration } from "./administration.ts";
import type { Overrides } from "./config/overrides.ts";
import { PublicError } from "./errors.ts";

const OK = 0;
const FAILED = 1;

/** Resolves to the exit code. */
export type AdministrativeAct = (administration: Administration) => Promise<number>;

export interface Commands {
  /** Adds the options that name a configuration. */
  readonly withOptions: (command: Command) => Command;
  readonly run: (flags: Overrides, act: AdministrativeAct) => Promise<void>;
}

export const dateOf = (atMs: number) => new Date(atMs).toISOString();

/** Prints rows of equal length, each column as wide as its longest cell. */
export function printTable(rows: readonly (readonly string[])[]): void {
  const widths = (rows[0] ?? []).map((_, i) => Math.max(...rows.map((row) => row[i]?.length ?? 0)));
  for (const row of rows) {
    const line = row.map((cell, i) => cell.padEnd(widths[i] ?? 0)).join("  ");
    process.stdout.write(`${line.trimEnd()}\n`);
  }
}

/** Prints an error that a client of the API would get in the same case. */
export async function reporting(act: () => Promise<void>): Promise<number> {
  try {
    await act();
    return OK;
  } catch (error) {
    if (!(error instanceof PublicError)) throw error;
    process.stderr.write(`batchd: ${error.message}\n`);
    return FAILED;
  }
}
