/** The tables of keys, and of the requests of projects. `schema.ts` has the rules of all tables. */
import type { ProjectSettings } from "../../contract/project.ts";
import type { Scope } from "../../contract/scope.ts";
import type { KeyId } from "../keys.ts";
import { count, sequence } from "./columns.ts";
import { check, index, integer, sql, sqliteTable, text, uniqueIndex } from "./drizzle.ts";

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

/** Projects that were made at run time, and those whose data is being deleted. */
export const projects = sqliteTable(
  "projects",
  {
    sequence: sequence(),
    name: text("name").notNull(),
    /** They are as the configuration would have them. */
    rules: text("rules", { mode: "json" }).$type<ProjectSettings>().notNull(),
    createdAtMs: integer("created_at_ms").notNull(),
    changedAtMs: integer("changed_at_ms").notNull(),
    /** The time is null unless the data of the project is being deleted. */
    deletedAtMs: integer("deleted_at_ms"),
  },
  (project) => [uniqueIndex("projects_name").on(project.name)],
);

/** The interactive requests under way of projects that may have only so many at once. */
export const interactiveSlots = sqliteTable(
  "interactive_slots",
  {
    sequence: sequence(),
    id: text("id").notNull(),
    project: text("project").notNull(),
    expiresAtMs: integer("expires_at_ms").notNull(),
  },
  (slot) => [
    uniqueIndex("interactive_slots_id").on(slot.id),
    index("interactive_slots_by_project").on(slot.project, slot.expiresAtMs),
  ],
);
