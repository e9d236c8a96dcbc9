/**
 * `npm start`: the server from its sources, without a build.
 *
 * Node strips the types from them with a compiler that then stays in memory, 34 MB that the server has no use for. So
 * whenever the sources have changed a process of its own loads them once and leaves the result in Node's compile
 * cache; the server reads it there. Without the cache (a folder that cannot be written) it strips them itself.
 */
import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { enableCompileCache } from "node:module";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const pathOf = (path) => fileURLToPath(new URL(path, import.meta.url));
const SOURCES = pathOf("../src");
const MAIN = join(SOURCES, "main.ts");
const CACHE = pathOf("../node_modules/.cache/batchd");
/** Newer than every source that is in the cache. */
const STAMP = join(CACHE, "stamp");

function isFresh() {
  const stamp = statSync(STAMP, { throwIfNoEntry: false });
  if (stamp === undefined) return false;
  return readdirSync(SOURCES, { recursive: true }).every(
    (name) => statSync(join(SOURCES, name)).mtimeMs < stamp.mtimeMs,
  );
}

function fillCache() {
  mkdirSync(CACHE, { recursive: true });
  writeFileSync(STAMP, "");
  // With the same flags: Node keeps a cache for each set of them.
  const args = [...process.execArgv, MAIN, "--help"];
  spawnSync(process.execPath, args, {
    env: { ...process.env, NODE_COMPILE_CACHE: CACHE },
    stdio: "ignore",
  });
}

try {
  if (!isFresh()) fillCache();
} catch {
  // It only costs memory.
}
enableCompileCache(CACHE);
// A path with a drive is no address.
await import(pathToFileURL(MAIN).href);
