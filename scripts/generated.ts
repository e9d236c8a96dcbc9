/**
 * Writes the generated files, and removes snapshots of schemas that a newer one replaces. With `--check` it writes
 * nothing, and fails for a file that is out of date or replaced.
 */
import { existsSync, globSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { openApiYaml } from "../src/contract/openapi.ts";
import { runRecordSchema } from "../src/contract/run.ts";
import { configurationPage } from "./configuration-page.ts";
import { errorsPage } from "./errors-page.ts";
import { observabilityPage } from "./observability-page.ts";

const ROOT = fileURLToPath(new URL("..", import.meta.url));

const GENERATED: Readonly<Record<string, () => string>> = {
  "openapi.yaml": openApiYaml,
  "docs/configuration.md": configurationPage,
  "docs/errors.md": errorsPage,
  "docs/observability.md": observabilityPage,
  "docs/run_record.v1.schema.json": runRecordSchema,
};

/** Returns the snapshots of schemas that have a newer one beside them. drizzle-kit compares with the newest alone. */
function oldSnapshots(): string[] {
  const folders = globSync("migrations/*/meta", { cwd: ROOT });
  return folders.flatMap((folder) =>
    globSync(`${folder}/*_snapshot.json`, { cwd: ROOT }).sort().slice(0, -1),
  );
}

const pathOf = (name: string) => join(ROOT, name);

const isInStep = (name: string, text: string) =>
  existsSync(pathOf(name)) && readFileSync(pathOf(name), "utf8") === text;

const replaced = oldSnapshots();
const stale = Object.entries(GENERATED)
  .map(([name, generate]) => ({ name, text: generate() }))
  .filter(({ name, text }) => !isInStep(name, text));

if (process.argv.includes("--check")) {
  for (const { name } of stale) {
    console.error(`${name} is out of step with the code: run \`npm run generate\``);
  }
  for (const name of replaced) {
    console.error(`${name} has a newer one beside it: run \`npm run generate\``);
  }
  process.exitCode = stale.length + replaced.length === 0 ? 0 : 1;
} else {
  for (const name of replaced) rmSync(pathOf(name));
  for (const { name, text } of stale) {
    writeFileSync(pathOf(name), text);
    console.log(`wrote ${name}`);
  }
}
