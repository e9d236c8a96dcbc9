/**
 * Loads Drizzle with `require`. As ES modules, each of its 130 files makes Node parse the package's 180 kB
 * `package.json` again. That costs 180 MB of memory and 0.4 s at every start; `require` reads the file once.
 */
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);

export type { SQL, SQLWrapper } from "drizzle-orm";
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
  placeholder,
  sql,
} = require("drizzle-orm") as typeof import("drizzle-orm");
export const { readMigrationFiles } =
  require("drizzle-orm/migrator") as typeof import("drizzle-orm/migrator");
