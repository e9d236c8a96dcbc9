/** Reads configurations as the server does, from a file of YAML, the environment and flags. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type ConfigResult, loadConfig, parseConfig } from "../../src/config/config.ts";
import type { Overrides } from "../../src/config/overrides.ts";
import type { Config } from "../../src/config/schema.ts";

export type Environment = Readonly<Record<string, string>>;

/** A file with this text. It is gone at the end of the scope. */
export function configFile(yaml: string): Disposable & { readonly path: string } {
  const folder = mkdtempSync(join(tmpdir(), "batchd-config-"));
  const path = join(folder, "batchd.yaml");
  writeFileSync(path, yaml);
  return { path, [Symbol.dispose]: () => rmSync(folder, { recursive: true }) };
}

function loadYaml(yaml: string, env: Environment = {}, flags: Overrides = {}): ConfigResult {
  using file = configFile(yaml);
  return loadConfig({ config: file.path, ...flags }, env);
}

/** Returns the configuration, and throws if anything in it is wrong. */
export function load(...given: Parameters<typeof loadYaml>): Config {
  const loaded = loadYaml(...given);
  if (!loaded.ok) throw new Error(loaded.problems.join("\n"));
  return loaded.config;
}

export function problemsOf(...given: Parameters<typeof loadYaml>): readonly string[] {
  const loaded = loadYaml(...given);
  return loaded.ok ? [] : loaded.problems;
}

/** Returns the configuration with these values, and throws if anything in it is wrong. */
export function configWith(values: object): Config {
  const parsed = parseConfig(values);
  if (!parsed.ok) throw new Error(parsed.problems.join("\n"));
  return parsed.config;
}

export function problemsWith(values: object): readonly string[] {
  const parsed = parseConfig(values);
  return parsed.ok ? [] : parsed.problems;
}

/** `${NAME}`, as it stands in a file. */
const placeholder = (name: string) => `\${${name}}`;

/** The placeholders of three variables of the environment. */
export const [A, B, C] = ["A", "B", "C"].map(placeholder) as [string, string, string];
