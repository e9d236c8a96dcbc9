/** Serves the commands for keys and for projects with what they share: their flags, their lists and their errors. */
import type { Command } from "commander";
import type { Overrides } from "../config/overrides.ts";
import { ADMIN_PAGE } from "../contract/key.ts";
import { PublicError } from "../errors.ts";
import type { Administration } from "../runtime/administration.ts";
import type { Page } from "../store/page.ts";
import { note, sayJson, sayTable } from "../terminal/lines.ts";
import { complainInLines, fail, OK } from "../terminal/output.ts";
import { date } from "../words.ts";

/** Resolves to the exit code. */
export type AdministrativeAct = (administration: Administration) => Promise<number>;

export interface Commands {
  /** Adds the options that name a configuration. */
  readonly withOptions: (command: Command) => Command;
  /** Runs a command on a database that is there: another folder has no keys and no projects, as if all were gone. */
  readonly run: (flags: Overrides, act: AdministrativeAct) => Promise<void>;
  /** Runs a command that may come before the first start of a server, and makes the database for it. */
  readonly begin: (flags: Overrides, act: AdministrativeAct) => Promise<void>;
  /** Runs a command that works on the files of the database, too. */
  readonly runOnFiles: (flags: Overrides, act: AdministrativeAct) => Promise<void>;
}

export interface ListFlags extends Overrides {
  readonly json?: boolean;
}

export const dateOf = (atMs: number): string => date(atMs / 1000);

/** Yields the objects of a list, whose pages follow the ids that `idOf` returns. */
export async function* everyOne<T, Id>(
  list: (page: { readonly limit: number; readonly after: Id | null }) => Promise<Page<T>>,
  idOf: (last: T) => Id,
): AsyncGenerator<T> {
  let after: Id | null = null;
  for (;;) {
    const { data, hasMore }: Page<T> = await list({ limit: ADMIN_PAGE.max, after });
    yield* data;
    const last = data.at(-1);
    if (!hasMore || last === undefined) return;
    after = idOf(last);
  }
}

interface Table<T> {
  readonly head: readonly string[];
  readonly rowOf: (item: T) => readonly string[];
  /** What is said where there is none. */
  readonly none: string;
}

/** Prints a list as a table, or each object as the API shows it. Returns the exit code. */
export async function sayEach<T>(
  items: AsyncIterable<T>,
  shape: Table<T> | ((item: T) => object),
): Promise<number> {
  if (typeof shape === "function") {
    for await (const item of items) sayJson(shape(item));
    return OK;
  }
  const rows: (readonly string[])[] = [];
  for await (const item of items) rows.push(shape.rowOf(item));
  if (rows.length === 0) note(shape.none);
  else sayTable(shape.head, rows);
  return OK;
}

/** Says that a command has made a new database: what was made in a wrong folder would be looked for in vain. */
export function tellOfNew({ begunIn }: Administration): void {
  if (begunIn === null) return;
  complainInLines(
    `note: no server has used ${begunIn} yet. The server that is to know of this needs it as its data folder`,
  );
}

/** Prints an error that a client of the API would get in the same case. */
export async function reporting(act: () => Promise<void>): Promise<number> {
  try {
    await act();
    return OK;
  } catch (error) {
    if (!(error instanceof PublicError)) throw error;
    return fail(error.message);
  }
}
