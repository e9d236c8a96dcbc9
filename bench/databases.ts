/** Starts the PostgreSQL and the S3 server of the fleet figures, and counts what is asked of them. */
import { Client } from "pg";
import { startPostgres, type TestPostgres } from "../test/support/postgres.ts";
import { hasS3Server, type S3Server, startS3Server } from "../test/support/s3-server.ts";

/** Commits wait for the disk, as they do in production. */
const SETTINGS = [
  "fsync=on",
  "full_page_writes=on",
  "shared_buffers=256MB",
  "max_connections=200",
  "shared_preload_libraries=pg_stat_statements",
];

export interface Places extends AsyncDisposable {
  /** Returns the configuration of a new and empty installation. */
  newInstallation(): Promise<Installation>;
}

export interface Installation {
  readonly config: Readonly<Record<string, unknown>>;
  /** Counts the statements that the server has run for the installation, as `pg_stat_statements` has them. */
  statementCount(): Promise<number>;
  close(): Promise<void>;
}

/** Returns null, and says so, when one of the servers cannot be had. */
export async function startPlaces(): Promise<Places | null> {
  if (!hasS3Server()) return null;
  const postgres = await startPostgres("the bench of fleets", { settings: SETTINGS });
  if (postgres === null) return null;
  const s3 = await startS3Server();
  let count = 0;
  return {
    newInstallation: () => openInstallation(postgres, s3.storage({ prefix: `bench-${count++}/` })),
    [Symbol.asyncDispose]: () => closeBoth(postgres, s3),
  };
}

async function closeBoth(postgres: TestPostgres, s3: S3Server): Promise<void> {
  await s3[Symbol.asyncDispose]();
  await postgres[Symbol.asyncDispose]();
}

async function openInstallation(
  postgres: TestPostgres,
  storage: Readonly<Record<string, unknown>>,
): Promise<Installation> {
  const url = await postgres.createDatabase();
  const client = new Client(url);
  // A measurement that fails leaves it open, and the end of the server must not hide the failure.
  client.on("error", () => {});
  await client.connect();
  await client.query("create extension pg_stat_statements");
  return {
    config: { database_url: url, storage },
    statementCount: async () => {
      // The statements of this connection are left out.
      const { rows } = await client.query<{ calls: string }>(
        `select coalesce(sum(calls), 0) as calls from pg_stat_statements
         where dbid = (select oid from pg_database where datname = current_database())
           and query not like '%pg_stat_statements%'`,
      );
      return Number(rows[0]?.calls);
    },
    close: () => client.end(),
  };
}
