/** The tables of keys, and of the requests of projects. `schema.ts` has the rules of all tables. */
import type { ProjectSettings } from "../../contract/project.ts";
import type { Scope } from "../../contract/scope.ts";
import type { KeyId } from "../keys.ts";
import { big, count, sequence, text } from "./columns.ts";
import { check, index, json, pgTable, sql, unique } from "./drizzle.ts";

export const apiKeys = pgTable(
  "api_keys",
  {
    sequence: sequence(),
    id: text("id").$type<KeyId>().notNull(),
    project: text("project").notNull(),
    name: text("name").notNull(),
    scopes: json("scopes").$type<readonly Scope[]>().notNull(),
    digest: text("digest").notNull(),
    createdAtMs: big("created_at_ms").notNull(),
    expiresAtMs: big("expires_at_ms"),
    lastUsedAtMs: big("last_used_at_ms"),
  },
  (key) => [unique("api_keys_id").on(key.id), check("digest_is_sha256", sql`length(digest) = 64`)],
);

/** Has its one row as soon as a key was made: from then on every request needs a key. */
export const keyRequirement = pgTable("key_requirement", { sequence: sequence() }, () => [
  check("one_key_requirement", sql`sequence = 1`),
]);

/** The requests of a project in the latest minute in which it sent one, if they are limited. */
export const requestCounts = pgTable(
  "request_counts",
  {
    sequence: sequence(),
    project: text("project").notNull(),
    /** The number of the minute since 1970. */
    minute: big("minute").notNull(),
    requestCount: count("request_count"),
  },
  (row) => [unique("request_counts_project").on(row.project)],
);

/** Random keys with which the processes of an installation sign what they give to browsers. */
export const signingKeys = pgTable(
  "signing_keys",
  {
    sequence: sequence(),
    purpose: text("purpose").notNull(),
    key: text("key").notNull(),
  },
  (row) => [unique("signing_keys_purpose").on(row.purpose)],
);

/** Projects that were made at run time, and those whose data is being deleted. */
export const projects = pgTable(
  "projects",
  {
    sequence: sequence(),
    name: text("name").notNull(),
    /** They are as the configuration would have them. */
    rules: json("rules").$type<ProjectSettings>().notNull(),
    createdAtMs: big("created_at_ms").notNull(),
    changedAtMs: big("changed_at_ms").notNull(),
    /** The time is null unless the data of the project is being deleted. */
    deletedAtMs: big("deleted_at_ms"),
  },
  (project) => [unique("projects_name").on(project.name)],
);

/** Rows to lock: `project-locks.ts` says which one for what. A migration fills it. */
export const projectLocks = pgTable("project_locks", { number: big("number").primaryKey() });

/** The interactive requests under way of projects that may have only so many at once. */
export const interactiveSlots = pgTable(
  "interactive_slots",
  {
    sequence: sequence(),
    id: text("id").notNull(),
    project: text("project").notNull(),
    expiresAtMs: big("expires_at_ms").notNull(),
  },
  (slot) => [
    unique("interactive_slots_id").on(slot.id),
    index("interactive_slots_by_project").on(slot.project, slot.expiresAtMs),
  ],
);
