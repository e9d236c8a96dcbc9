/** The tables of keys, and of the requests of projects. `schema.ts` has the rules of all tables. */
import type { Scope } from "../../contract/scope.ts";
import type { KeyId } from "../keys.ts";
import { count, sequence } from "./columns.ts";
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

/** The requests of a project in the latest minute in which it sent one, if they are limited. */
export const requestCounts = sqliteTable(
  "request_counts",
  {
    sequence: sequence(),
    project: text("project").notNull(),
    /** The number of the minute since 1970. */
    minute: integer("minute").notNull(),
    requestCount: count("request_count"),
  },
  (row) => [uniqueIndex("request_counts_project").on(row.project)],
);

/** Random keys with which the processes of an installation sign what they give to browsers. */
export const signingKeys = sqliteTable(
  "signing_keys",
  {
    sequence: sequence(),
    purpose: text("purpose").notNull(),
    key: text("key").notNull(),
  },
  (row) => [uniqueIndex("signing_keys_purpose").on(row.purpose)],
);
