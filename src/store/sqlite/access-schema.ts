/** The tables of keys. `schema.ts` has the rules of all tables. */
import type { Scope } from "../../contract/scope.ts";
import type { KeyId } from "../keys.ts";
import { sequence } from "./columns.ts";
import { check, integer, sql, sqliteTable, text, uniqueIndex } from "./drizzle.ts";

export const apiKeys = sqliteTable(
  "api_keys",
  {
    sequence: sequence(),
    id: text("id").$type<KeyId>().notNull(),
    project: text("project").notNull(),
    name: text("name").notNull(),
    scopes: text("scopes", { mode: "json" }).$type<readonly Scope[]>().notNull(),
    digest: text("digest").notNull(),
    createdAtMs: integer("created_at_ms").notNull(),
    expiresAtMs: integer("expires_at_ms"),
    lastUsedAtMs: integer("last_used_at_ms"),
  },
  (key) => [
    uniqueIndex("api_keys_id").on(key.id),
    check("digest_is_sha256", sql`length(digest) = 64`),
  ],
);

/** Has its one row as soon as a key was made: from then on every request needs a key. */
export const keyRequirement = sqliteTable("key_requirement", { sequence: sequence() }, () => [
  check("one_key_requirement", sql`sequence = 1`),
]);
