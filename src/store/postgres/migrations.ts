import { fileURLToPath } from "node:url";
import { Client, type PoolConfig, readMigrationFiles } from "./drizzle.ts";

/** `src/` and `dist/` both stand beside `migrations/`, so one path serves a checkout and a package. */
export const MIGRATIONS_DIR = fileURLToPath(
  new URL("../../../migrations/postgres", import.meta.url),
);

/** The number of the advisory lock. Nothing else in the database may use it. */
const LOCK = 0x6261_7463;
const TABLE = "batchd_migrations";

export type Migrated = "done" | "newer";

interface MigrationOptions {
  readonly connection: PoolConfig;
  readonly migrationsDir: string;
}

/**
 * Brings the database up to date, in one transaction under a lock. If several replicas start together, one of them does
 * it, and the others wait and find it done. A database with migrations that this version does not know stays as it is,
 * because a newer version wrote its rows.
 */
export async function migrate(options: MigrationOptions): Promise<Migrated> {
  // The connections of the pool limit the time of a statement, and another replica may take long.
  const client = new Client(options.connection);
  // The statement reports the end of its connection.
  client.on("error", () => {});
  await client.connect();
  try {
    await client.query("begin");
    const migrated = await migrateUnderLock(client, options);
    await client.query(migrated === "done" ? "commit" : "rollback");
    return migrated;
  } finally {
    // The end of the connection rolls back everything that was not committed.
    await client.end().catch(() => {});
  }
}

async function migrateUnderLock(
  client: InstanceType<typeof Client>,
  { migrationsDir }: MigrationOptions,
): Promise<Migrated> {
  await client.query("select pg_advisory_xact_lock($1)", [LOCK]);
  await client.query(
    `create table if not exists ${TABLE} (hash text primary key, made_at timestamptz not null default now())`,
  );
  const { rows } = await client.query<{ hash: string }>(`select hash from ${TABLE}`);
  const applied = new Set(rows.map(({ hash }) => hash));
  const known = readMigrationFiles({ migrationsFolder: migrationsDir });
  const isKnown = new Set(known.map(({ hash }) => hash));
  if (![...applied].every((hash) => isKnown.has(hash))) return "newer";
  for (const { hash, sql } of known.filter((migration) => !applied.has(migration.hash))) {
    for (const statement of sql) await client.query(statement);
    await client.query(`insert into ${TABLE} (hash) values ($1)`, [hash]);
  }
  return "done";
}
