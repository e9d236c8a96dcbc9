/**
 * Finds the statements of a migration that the version before cannot live with. Replicas of two versions run side by side
 * during an upgrade. So a migration may only add tables, columns with a default or without a value, indexes, and triggers that
 * run after a change, fill the columns that it adds, and say how often PostgreSQL looks at a table. What takes something away waits for a later version, in a migration
 * whose name says `contract`.
 */

const CREATED_TABLE = /^create table (?:if not exists )?"?(\w+)"?/i;
const CREATED_INDEX = /^create index /i;
const CHANGED_TABLE = /^(?:alter table|insert into|create unique index .+? on) "?(\w+)"?/i;
/** A function and a trigger that keep a new table in step with what older versions write. */
const CREATED_FUNCTION = /^create function /i;
const CREATED_TRIGGER = /^create trigger \S+ after /i;
/** How often PostgreSQL looks at a table is of no concern to what uses it. */
const TENDED_TABLE = /^alter table "?\w+"? set \(autovacuum_\w+ = [\d.]+\)/i;
const ADDED_COLUMN = /^alter table "?(\w+)"? add column "?(\w+)"?/i;
const FILLED_COLUMNS = /^update "?(\w+)"? set \(([^)]+)\) = /i;
const UNIQUE = /\bunique\b/i;
const NOT_NULL = /\bnot null\b/i;
const FILLED = /\b(?:default|generated)\b/i;

const EXPANSIONS = [CREATED_TABLE, CREATED_INDEX, CREATED_FUNCTION, CREATED_TRIGGER, TENDED_TABLE];

const isExpandingColumn = (statement: string): boolean =>
  ADDED_COLUMN.test(statement) &&
  !UNIQUE.test(statement) &&
  (!NOT_NULL.test(statement) || FILLED.test(statement));

/** The column that a statement adds, with its table. */
const addedColumn = (statement: string): string => {
  const [, table, column] = ADDED_COLUMN.exec(statement) ?? [];
  return `${table}.${column}`;
};

/** The columns to which a statement gives values, with their table. */
const filledColumns = (statement: string): string[] => {
  const [, table, columns = ""] = FILLED_COLUMNS.exec(statement) ?? [];
  return [...columns.matchAll(/\w+/g)].map(([column]) => `${table}.${column}`);
};

export function contractions(sql: string): string[] {
  const statements = sql
    .split(/;\s*$|--> statement-breakpoint/m)
    .map((statement) => statement.replaceAll(/\s+/g, " ").trim())
    .filter((statement) => statement !== "");
  const created = new Set(statements.flatMap((each) => CREATED_TABLE.exec(each)?.[1] ?? []));
  const added = new Set(statements.map(addedColumn));
  return statements.filter((statement) => {
    if (EXPANSIONS.some((expansion) => expansion.test(statement))) return false;
    // No older version writes to a table that is created here.
    if (created.has(CHANGED_TABLE.exec(statement)?.[1] ?? "")) return false;
    const filled = filledColumns(statement);
    if (filled.length > 0) return !filled.every((column) => added.has(column));
    return !isExpandingColumn(statement);
  });
}
