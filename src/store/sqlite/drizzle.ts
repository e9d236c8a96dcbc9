/** Loads the part of Drizzle that is for SQLite, with `require`: see `../sql/drizzle.ts`. */
import { createRequire } from "node:module";

export * from "../sql/drizzle.ts";

const require = createRequire(import.meta.url);

export const { drizzle } =
  require("drizzle-orm/better-sqlite3") as typeof import("drizzle-orm/better-sqlite3");
export const { migrate } =
  require("drizzle-orm/better-sqlite3/migrator") as typeof import("drizzle-orm/better-sqlite3/migrator");
export const { check, foreignKey, index, integer, sqliteTable, text, uniqueIndex } =
  require("drizzle-orm/sqlite-core") as typeof import("drizzle-orm/sqlite-core");
