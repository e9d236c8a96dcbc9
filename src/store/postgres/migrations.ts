/**
 * Brings a PostgreSQL database up to date while replicas of this version and the one before use it. However many start
 * together, one of them runs the migrations and the others wait.
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { type Clock, sleep } from "../../clock.ts";
import { Client, DatabaseError, type PoolConfig, readMigrationFiles } from "./drizzle.ts";

/** `src/` and `dist/` both stand beside `migrations/`, so one path serves a checkout and a package. */
export const MIGRATIONS_DIR = fileURLToPath(
  new URL("../../../migrations/postgres", import.meta.url),
);

const TABLE = "batchd_migrations";
/** The row of the table that is no migration. The process that brings the database up to date holds it locked. */
const LOCK = "lock";
/** The codes for a table that another connection has made meanwhile. */
const MADE_MEANWHILE: readonly unknown[] = ["23505", "42P07", "42710"];
/**
 * Replicas that start together wait for each other, and go on with what the one before has committed. A limit for the statements or
 * the transactions of a service would end the making of an index at each start anew; that for transactions is there since version
 * 17. A process may stop here (SIGSTOP, a partition), and its locks must end.
 */
const BEGIN = `begin isolation level read committed;
  select set_config(name, '0', true) from pg_settings
    where name in ('statement_timeout', 'transaction_timeout');
  set local idle_in_transaction_session_timeout = '15s'`;
/**
 * A change of a table waits for all transactions that have read it, such as a backup, and every other replica waits behind it.
 * So it waits for a moment only, lets the others go on, and is tried again.
 */
const LIMIT_LOCKS = "set local lock_timeout = '2s'";
/** A lock timeout, or a deadlock with a replica of the version before: another order of the same two tables. */
const NOT_LOCKED = ["55P03", "40P01"];
const ATTEMPTS = 20;
const PAUSE_MS = 3_000;
/** Marks the name of a migration that the version before cannot live with: see CONTRIBUTING.md. */
const CONTRACT = /^\d+_contract_/;

/**
 * Encodings in which every text of a client can be stored. In the others a name in another script is refused, and so would be a
 * segment whose model has one: its batch would never end.
 */
const ENCODINGS = ["UTF8", "SQL_ASCII"];

/**
 * What became of a database: it is up to date, a newer version has changed it, others keep a table from being changed, or it has an
 * encoding that cannot store every text.
 */
export type Migrated = "done" | "newer" | "locked" | "narrow_encoding";

interface MigrationOptions {
  readonly connection: PoolConfig;
  readonly migrationsDir: string;
  /** It times the pauses between attempts. */
  readonly clock: Pick<Clock, "after">;
}

/**
 * Brings the database up to date, in one transaction under a lock. If several replicas start together, one of them does
 * it, and the others wait and find it done.
 *
 * Replicas of two versions run side by side during an upgrade, and the older ones may start again. So migrations that this
 * version does not know are no obstacle, unless one of their names says that it takes something away. This version would
 * not understand the rows then, and the database stays as it is.
 */
export async function migrate(options: MigrationOptions): Promise<Migrated> {
  for (let n = 1; ; n++) {
    const migrated = await migrateOnce(options);
    if (migrated !== "locked" || n === ATTEMPTS) return migrated;
    await sleep(options.clock, PAUSE_MS);
  }
}

async function migrateOnce(options: MigrationOptions): Promise<Migrated> {
  // The connections of the pool limit the time of a statement, and another replica may take long.
  const client = new Client(options.connection);
  // The statement reports the end of its connection.
  client.on("error", () => {});
  await client.connect();
  try {
    if (!(await storesEveryText(client))) return "narrow_encoding";
    await createTable(client);
    await client.query(BEGIN);
    const migrated = await migrateUnderLock(client, options);
    await client.query(migrated === "done" ? "commit" : "rollback");
    return migrated;
  } catch (cause) {
    if (cause instanceof DatabaseError && NOT_LOCKED.includes(cause.code ?? "")) return "locked";
    throw cause;
  } finally {
    // The end of the connection rolls back everything that was not committed.
    await client.end().catch(() => {});
  }
}

async function storesEveryText(client: InstanceType<typeof Client>): Promise<boolean> {
  const { rows } = await client.query<{ server_encoding: string }>("show server_encoding");
  return ENCODINGS.includes(rows[0]?.server_encoding.toUpperCase() ?? "");
}

/** Asks first, because a user who may not make tables could otherwise use none that are there. */
async function createTable(client: InstanceType<typeof Client>): Promise<void> {
  const { rows } = await client.query<{ isThere: boolean }>(
    `select to_regclass('${TABLE}') is not null as "isThere"`,
  );
  if (rows[0]?.isThere === true) return;
  try {
    await client.query(
      `create table if not exists ${TABLE} (
        hash text primary key, name text not null, made_at timestamptz not null default now())`,
    );
  } catch (cause) {
    if (!(cause instanceof DatabaseError) || !MADE_MEANWHILE.includes(cause.code)) throw cause;
  }
}

async function migrateUnderLock(
  client: InstanceType<typeof Client>,
  { migrationsDir }: MigrationOptions,
): Promise<Migrated> {
  await client.query(
    `insert into ${TABLE} (hash, name) values ($1, $1) on conflict (hash) do update set name = $1`,
    [LOCK],
  );
  await client.query(LIMIT_LOCKS);
  const { rows } = await client.query<Applied>(`select hash, name from ${TABLE}`);
  const applied = new Set(rows.map(({ hash }) => hash));
  const known = readMigrations(migrationsDir);
  const isKnown = new Set(known.map(({ hash }) => hash));
  if (rows.some(({ hash, name }) => !isKnown.has(hash) && CONTRACT.test(name))) return "newer";
  for (const { hash, name, sql } of known.filter((migration) => !applied.has(migration.hash))) {
    for (const statement of sql) await client.query(statement);
    await client.query(`insert into ${TABLE} (hash, name) values ($1, $2)`, [hash, name]);
  }
  return "done";
}

/** A migration that the database has had. */
interface Applied {
  readonly hash: string;
  readonly name: string;
}

/**
 * Adds the names, which drizzle leaves out. Both lists have the order of the journal. The tables belong into the schema that
 * the connection writes to, but drizzle puts `public` before the tables that foreign keys refer to.
 */
function readMigrations(migrationsFolder: string) {
  const journal = readFileSync(join(migrationsFolder, "meta/_journal.json"), "utf8");
  const { entries } = JSON.parse(journal) as { entries: readonly { readonly tag: string }[] };
  return readMigrationFiles({ migrationsFolder }).map(({ hash, sql }, i) => ({
    hash,
    sql: sql.map((statement) => statement.replaceAll('"public".', "")),
    name: entries[i]?.tag ?? "",
  }));
}
