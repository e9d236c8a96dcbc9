/**
 * Makes the first data of the PostgreSQL servers that tests start, with a database that has all tables. A run starts about
 * fifteen servers, and each would take more than a second of processor time to make its own.
 */
import { execFileSync } from "node:child_process";
import { cpSync } from "node:fs";
import { join } from "node:path";
import { startPostgres } from "./postgres.ts";
import { binaryFolders } from "./postgres-binaries.ts";
import { prepare, versionOf } from "./prepared.ts";

/** Names the data to the processes of the tests. Where no server can be had, the tests of PostgreSQL say so. */
export async function setup(): Promise<void> {
  const binaries = binaryFolders().map((folder) => join(folder, "postgres"));
  const versions = binaries.map((each) => execFileSync(each, ["--version"], { encoding: "utf8" }));
  if (versions.length === 0) return;
  const version = versionOf(versions, [
    "test/support/postgres.ts",
    "test/support/prepared-postgres.ts",
    "migrations/postgres",
    "src/store/postgres",
  ]);
  try {
    process.env["BATCHD_TEST_POSTGRES_DATA"] = await prepare("postgres", version, make);
  } catch {
    // Each server makes its own, and the tests of PostgreSQL say what is wrong.
  }
}

async function make(folder: string): Promise<void> {
  await using postgres = await startPostgres("the tests of PostgreSQL", { settings: [] });
  const server = postgres?.server;
  if (!server) throw new Error("no PostgreSQL could be started");
  await server.tables();
  await server.stop();
  cpSync(join(server.folder, "data"), folder, { recursive: true });
}
