/**
 * Chooses the database that the configuration names: a SQLite file in the data folder, or PostgreSQL. The other parts of the
 * runtime ask here for what depends on the choice.
 */
import { randomUUID } from "node:crypto";
import type { Config } from "../../config/schema.ts";
import { wasUsed } from "./data-folder.ts";
import type { Database, DatabaseDeps } from "./database.ts";
import { postgresWith } from "./postgres-database.ts";
import { openSqliteBesideServer, sqliteIn } from "./sqlite-database.ts";

type Places = Pick<Config, "database" | "database_url">;

/** Whether several processes can use the database. */
export const isShared = ({ database_url: url }: Pick<Config, "database_url">): boolean =>
  url !== undefined;

/**
 * The interval at which a process looks for work without a nudge. On SQLite it has made all work itself. On PostgreSQL each
 * look of each process is a statement, and a batch of another process must start within ten seconds where no nudge arrives.
 */
const POLL_EVERY_MS = 1_000;
const POLL_SHARED_EVERY_MS = 4_000;

export const pollEveryMs = (config: Pick<Config, "database_url">): number =>
  isShared(config) ? POLL_SHARED_EVERY_MS : POLL_EVERY_MS;

/** Returns whether a server has used the folder, or has its database elsewhere. PostgreSQL is not asked. */
export const hasDatabase = (dir: string, { database_url: url }: Places): boolean =>
  url !== undefined || wasUsed(dir);

/** Opens the database for a command beside a server that has it alone; null when there is no such server. */
export const openBesideServer = async (
  dir: string,
  { database_url: url }: Places,
  deps: DatabaseDeps,
) => (url === undefined ? openSqliteBesideServer(dir, deps) : null);

export function databaseIn(
  dir: string,
  { database_url: url, database }: Places,
  deps: DatabaseDeps,
): Database {
  if (url === undefined) return sqliteIn(dir, deps);
  const { pool_size: poolSize, tls, ca_file: caFile, listen: listens } = database;
  // The name tells this process from the servers that it looks for.
  const isServing = (deps.purpose ?? "serve") === "serve";
  const applicationName = isServing ? undefined : `batchd migrate-to ${randomUUID().slice(0, 8)}`;
  const connection = { url, poolSize, tls, caFile, applicationName };
  const { clock, onStatements } = deps;
  return postgresWith(dir, { ...connection, listens, clock, onStatements }, deps);
}
