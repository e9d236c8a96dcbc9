/** `strip-types.js SOURCES FOLDER`: writes the sources without their types into a new folder, and removes older ones beside it. */
import { mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { stripTypeScriptTypes } from "node:module";
import { dirname, join } from "node:path";

const [sources, folder] = process.argv.slice(2);
const unfinished = `${folder}.${process.pid}`;
for (const name of readdirSync(sources, { recursive: true })) {
  if (!name.endsWith(".ts")) continue;
  const path = join(unfinished, name);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, stripTypeScriptTypes(readFileSync(join(sources, name), "utf8")));
}
const cache = dirname(folder);
for (const name of readdirSync(cache)) {
  const path = join(cache, name);
  const isOlder = /^stripped-[0-9a-f]+$/.test(name) && path !== folder;
  if (isOlder) rmSync(path, { recursive: true, force: true });
}
try {
  renameSync(unfinished, folder);
} catch {
  // Another start was faster.
  rmSync(unfinished, { recursive: true });
}
