/** Loads the driver and the part of Drizzle that is for PostgreSQL, with `require`: see `../sql/drizzle.ts`. */
import { createRequire } from "node:module";

export * from "../sql/drizzle.ts";

const require = createRequire(import.meta.url);

export type { NodePgDatabase } from "drizzle-orm/node-postgres";
export type { PoolClient, PoolConfig } from "pg";
export const { DrizzleQueryError } =
  require("drizzle-orm/errors") as typeof import("drizzle-orm/errors");
export const { drizzle } =
  require("drizzle-orm/node-postgres") as typeof import("drizzle-orm/node-postgres");
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
