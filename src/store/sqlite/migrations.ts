import { fileURLToPath } from "node:url";
import type { Db } from "./database.ts";
import { migrate, readMigrationFiles, sql } from "./drizzle.ts";

/** `src/` and `dist/` both stand beside `migrations/`, so one path serves a checkout and a package. */
export const MIGRATIONS_DIR = fileURLToPath(new URL("../../../migrations/sqlite", import.meta.url));

const TABLE = "__drizzle_migrations";

/**
 * Brings the database up to date. False, and nothing changes, when it has migrations that are not among
 * ours: a newer version wrote it, and rows that this one does not understand must not be touched.
 */
export function migrateIfKnown(db: Db, migrationsDir: string): boolean {
  const known = new Set(
    readMigrationFiles({ migrationsFolder: migrationsDir }).map(({ hash }) => hash),
  );
  if (appliedHashes(db).some((hash) => !known.has(hash))) return false;
  migrate(db, { migrationsFolder: migrationsDir, migrationsTable: TABLE });
  return true;
}

function appliedHashes(db: Db): string[] {
  const exists = db.get(sql`select 1 from sqlite_schema where type = 'table' and name = ${TABLE}`);
  if (exists === undefined) return [];
  return db
    .all<{ hash: string }>(sql`select hash from ${sql.identifier(TABLE)}`)
    .map(({ hash }) => hash);
}
