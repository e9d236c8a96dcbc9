/** Every table is copied by `batchd migrate-to`, or has a reason not to be. */
import { getTableColumns, getTableName, isTable, type Table } from "drizzle-orm";
import { expect, test } from "vitest";
import { COPIED_TABLES } from "../../src/store/copying.ts";
import * as postgresAccess from "../../src/store/postgres/access-schema.ts";
import * as postgresDeliveries from "../../src/store/postgres/delivery-schema.ts";
import * as postgresFiles from "../../src/store/postgres/file-schema.ts";
import * as postgresRuns from "../../src/store/postgres/run-schema.ts";
import * as postgresBatches from "../../src/store/postgres/schema.ts";
import * as postgresUsage from "../../src/store/postgres/usage-schema.ts";
import * as sqliteAccess from "../../src/store/sqlite/access-schema.ts";
import * as sqliteDeliveries from "../../src/store/sqlite/delivery-schema.ts";
import * as sqliteFiles from "../../src/store/sqlite/file-schema.ts";
import * as sqliteRuns from "../../src/store/sqlite/run-schema.ts";
import * as sqliteBatches from "../../src/store/sqlite/schema.ts";
import * as sqliteUsage from "../../src/store/sqlite/usage-schema.ts";

const NOT_COPIED = {
  installation: "each side has a row of its own",
  blobIntents: "their writers are gone, and their blobs are not copied",
  forecasts: "they are made anew every second",
  requestCounts: "they are over within a minute",
  signingKeys: "the copy makes its own, and people sign in again",
  replicas: "no server may run on either side",
  slotShares: "they are parts of replicas",
  interactiveSlots: "their requests are over",
  projectLocks: "each database has all of its rows",
  usageSums: "triggers add them up",
  storedSums: "triggers add them up",
  reservations: "no worker holds a chunk",
};

const SCHEMAS = {
  SQLite: {
    ...sqliteFiles,
    ...sqliteBatches,
    ...sqliteAccess,
    ...sqliteDeliveries,
    ...sqliteRuns,
    ...sqliteUsage,
  },
  PostgreSQL: {
    ...postgresFiles,
    ...postgresBatches,
    ...postgresAccess,
    ...postgresDeliveries,
    ...postgresRuns,
    ...postgresUsage,
  },
};

const isCopied = (name: string) => (COPIED_TABLES as readonly string[]).includes(name);

test.each(Object.entries(SCHEMAS))("on %s no table is forgotten", (_, schema) => {
  const tables = Object.entries(schema).filter(([, each]) => isTable(each));
  const unknown = tables
    .map(([name]) => name)
    .filter((name) => !isCopied(name) && !(name in NOT_COPIED));
  expect(unknown).toEqual([]);
  for (const name of COPIED_TABLES) expect(schema).toHaveProperty(name);
});

/** The adapter of SQLite converts the usage of segments. */
const USAGE = ["inputTokens", "cachedTokens", "outputTokens", "reasoningTokens", "totalTokens"];

test.each(COPIED_TABLES)("the columns of %s have the same names in both databases", (name) => {
  const columnsOf = (table: Table) => Object.keys(getTableColumns(table)).toSorted();
  const [sqlite, postgres] = [SCHEMAS.SQLite[name], SCHEMAS.PostgreSQL[name]];
  expect(getTableName(sqlite)).toBe(getTableName(postgres));
  const expected = columnsOf(postgres).filter(
    (each) => name !== "segments" || !USAGE.includes(each),
  );
  expect(columnsOf(sqlite).filter((each) => each !== "usage")).toEqual(expected);
});
