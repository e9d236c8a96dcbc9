/** The tables of keys. `schema.ts` has the rules of all tables. */
import type { Scope } from "../../contract/scope.ts";
import type { KeyId } from "../keys.ts";
import { big, sequence, text } from "./columns.ts";
import { check, json, pgTable, sql, unique } from "./drizzle.ts";

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
