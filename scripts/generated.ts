/** Writes the generated files. With `--check` it writes nothing, and fails for a file that is out of date. */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { openApiYaml } from "../src/contract/openapi.ts";
import { configurationPage } from "./configuration-page.ts";
import { errorsPage } from "./errors-page.ts";
import { observabilityPage } from "./observability-page.ts";

const GENERATED: Readonly<Record<string, () => string>> = {
  "openapi.yaml": openApiYaml,
  "docs/configuration.md": configurationPage,
  "docs/errors.md": errorsPage,
  "docs/observability.md": observabilityPage,
};

const pathOf = (name: string) => fileURLToPath(new URL(`../${name}`, import.meta.url));

const isInStep = (name: string, text: string) =>
  existsSync(pathOf(name)) && readFileSync(pathOf(name), "utf8") === text;

const stale = Object.entries(GENERATED)
  .map(([name, generate]) => ({ name, text: generate() }))
  .filter(({ name, text }) => !isInStep(name, text));

if (process.argv.includes("--check")) {
  for (const { name } of stale) {
    console.error(`${name} is out of step with the code: run \`npm run generate\``);
  }
  process.exitCode = stale.length === 0 ? 0 : 1;
} else {
  for (const { name, text } of stale) {
    writeFileSync(pathOf(name), text);
    console.log(`wrote ${name}`);
  }
}
