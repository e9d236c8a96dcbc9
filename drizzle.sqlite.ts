import { defineConfig } from "drizzle-kit";

/** `npx drizzle-kit generate --name=what_changes --config drizzle.sqlite.ts` writes the next migration. */
export default defineConfig({
  dialect: "sqlite",
  schema: "./src/store/sqlite/*schema.ts",
  out: "./migrations/sqlite",
});
