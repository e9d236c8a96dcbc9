/**
 * Loads drizzle and the driver with `require`. An `import` would read drizzle's 180 kB `package.json` once for each of its
 * files.
 */
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);

export type { SQL } from "drizzle-orm";
export type { NodePgDatabase } from "drizzle-orm/node-postgres";
export type { PoolClient, PoolConfig } from "pg";
export const {
  and,
  asc,
  desc,
  eq,
  getTableColumns,
  getTableName,
  gt,
  gte,
  inArray,
  isNotNull,
  isNull,
  lt,
  lte,
  ne,
  or,
  sql,
} = require("drizzle-orm") as typeof import("drizzle-orm");
export const { DrizzleQueryError } =
  require("drizzle-orm/errors") as typeof import("drizzle-orm/errors");
export const { drizzle } =
  require("drizzle-orm/node-postgres") as typeof import("drizzle-orm/node-postgres");
export const { readMigrationFiles } =
  require("drizzle-orm/migrator") as typeof import("drizzle-orm/migrator");
export const {
  bigint,
  boolean,
  check,
  customType,
  foreignKey,
  index,
  integer,
  json,
  pgTable,
  unique,
  uniqueIndex,
} = require("drizzle-orm/pg-core") as typeof import("drizzle-orm/pg-core");
export const { Client, DatabaseError, Pool } = require("pg") as typeof import("pg");
