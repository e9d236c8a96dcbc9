/**
 * `npm start`: runs the server from its sources, without a build.
 *
 * Node strips the types with a compiler that stays in memory, 34 MB without a use for the server. So a separate process
 * loads changed sources once, and leaves the result in Node's compile cache for the server. Without the cache (a folder
 * that cannot be written) the server strips the types itself.
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
/** The time stamp of the cache. It is newer than every source in the cache. */
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
  // The flags must be the same, because Node keeps a cache for each set of them.
  const args = [...process.execArgv, MAIN, "--help"];
  spawnSync(process.execPath, args, {
    env: { ...process.env, NODE_COMPILE_CACHE: CACHE },
    stdio: "ignore",
  });
}

try {
  if (!isFresh()) fillCache();
} catch {
  // The server works without the cache, and only needs more memory.
}
enableCompileCache(CACHE);
// A path with a drive letter is no valid address.
await import(pathToFileURL(MAIN).href);
