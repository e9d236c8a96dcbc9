/** What the commands for keys and for projects share: how they begin, and what they print. */
import type { Command } from "commander";
import type { Overrides } from "../config/overrides.ts";
import { PublicError } from "../errors.ts";
import { complain, FAILED, OK } from "../terminal/output.ts";
import type { Administration } from "./administration.ts";

/** Resolves to the exit code. */
export type AdministrativeAct = (administration: Administration) => Promise<number>;

export interface Commands {
  /** Adds the options that name a configuration. */
  readonly withOptions: (command: Command) => Command;
  readonly run: (flags: Overrides, act: AdministrativeAct) => Promise<void>;
}

export const dateOf = (atMs: number) => new Date(atMs).toISOString();

/** Prints an error that a client of the API would get in the same case. */
export async function reporting(act: () => Promise<void>): Promise<number> {
  try {
    await act();
    return OK;
  } catch (error) {
    if (!(error instanceof PublicError)) throw error;
    complain(error.message);
    return FAILED;
  }
}
