import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { contractions } from "../support/migration-rules.ts";

const DIR = join(import.meta.dirname, "../../migrations/postgres");

test("no migration of PostgreSQL takes anything from the version before, unless its name says so", () => {
  const steps = readdirSync(DIR).filter((name) => /^\d+_(?!contract_).*\.sql$/.test(name));
  expect(steps.length).toBeGreaterThan(0);
  for (const name of steps) {
    expect(contractions(readFileSync(join(DIR, name), "utf8")), name).toEqual([]);
  }
});

test.each([
  'CREATE TABLE "moods" ("id" text NOT NULL);\n--> statement-breakpoint\nALTER TABLE "moods" ADD CONSTRAINT "x" FOREIGN KEY ("id") REFERENCES "a"("id");',
  'CREATE INDEX "moods_by_id" ON "batches" USING btree ("id");',
  'CREATE FUNCTION "sigh"() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;',
  'CREATE TRIGGER "sighs" AFTER INSERT ON "batches" FOR EACH ROW EXECUTE FUNCTION "sigh"();',
  'ALTER TABLE "batches" SET (autovacuum_analyze_scale_factor = 0.001);',
  'ALTER TABLE "batches" ADD COLUMN "mood" text;',
  `ALTER TABLE "batches" ADD COLUMN "mood" text DEFAULT 'calm' NOT NULL;`,
  'ALTER TABLE "batches" ADD COLUMN "mood" text;\n--> statement-breakpoint\nUPDATE "batches" SET ("mood") = (SELECT \'calm\') WHERE "model" = \'x\';',
])("an expansion is let through: %s", (sql) => {
  expect(contractions(sql)).toEqual([]);
});

test.each([
  'ALTER TABLE "batches" DROP COLUMN "model";',
  'DROP TABLE "batches";',
  'CREATE TRIGGER "sighs" BEFORE INSERT ON "batches" FOR EACH ROW EXECUTE FUNCTION "sigh"();',
  'ALTER TABLE "batches" RENAME COLUMN "model" TO "mood";',
  'ALTER TABLE "batches" ADD COLUMN "mood" text NOT NULL;',
  'ALTER TABLE "batches" ALTER COLUMN "model" SET NOT NULL;',
  'ALTER TABLE "batches" ALTER COLUMN "model" SET DATA TYPE bigint;',
  'ALTER TABLE "batches" ADD CONSTRAINT "calm" CHECK (true);',
  'CREATE UNIQUE INDEX "one_mood" ON "batches" USING btree ("mood");',
  "update batches set model = 'x';",
  `UPDATE "batches" SET ("model") = (SELECT 'x');`,
  'ALTER TABLE "moods" ADD COLUMN "model" text;\n--> statement-breakpoint\nUPDATE "batches" SET ("model") = (SELECT "x");',
])("a contraction is found: %s", (sql) => {
  expect(contractions(sql)).toHaveLength(1);
});
