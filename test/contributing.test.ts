import { existsSync, readFileSync } from "node:fs";
import { expect, test } from "vitest";
import manifest from "../package.json" with { type: "json" };

const ROOT = new URL("../", import.meta.url);
const TEXT = readFileSync(new URL("CONTRIBUTING.md", ROOT), "utf8");

const inBackticks = [...TEXT.matchAll(/`([^`\n]+)`/g)].map(([, text]) => text ?? "");

test("every place that CONTRIBUTING.md sends people to is there", () => {
  const paths = inBackticks.filter(
    (text) => /^[\w.]*\/?[\w./-]*(?:\/|\.\w+)$/.test(text) && /[/.]/.test(text),
  );
  expect(paths.length).toBeGreaterThan(20);
  expect(paths.filter((path) => !existsSync(new URL(path, ROOT)))).toEqual([]);
});

test("every script that it names is one", () => {
  const names = inBackticks.flatMap((text) => /^npm run ([\w:]+)/.exec(text)?.[1] ?? []);
  expect(names.length).toBeGreaterThan(4);
  expect(names.filter((name) => !(name in manifest.scripts))).toEqual([]);
});
