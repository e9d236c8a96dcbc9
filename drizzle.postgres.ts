import { defineConfig } from "drizzle-kit";

/** `npx drizzle-kit generate --name=what_changes --config drizzle.postgres.ts` writes the next migration. */
export default defineConfig({
  dialect: "postgresql",
  schema: "./src/store/postgres/*schema.ts",
  out: "./migrations/postgres",
});
