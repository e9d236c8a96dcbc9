/**
 * Loaded by `npm start` in front of the server, and so in each of its threads: gives Node the sources without their types.
 *
 * The compiler with which Node strips types stays in memory: 34 MB without a use for the server. So a process of its own
 * strips the sources when they have changed, and this reads what it left. Node's own compile cache would do the same, but
 * holds all compiled code in memory. When there is nothing to read (a folder that cannot be written), Node strips the types.
 */
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { registerHooks } from "node:module";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const pathOf = (path) => fileURLToPath(new URL(path, import.meta.url));
const SOURCES = pathOf("../src");
const URL_OF_SOURCES = `${pathToFileURL(SOURCES)}/`;

/** The folder of the stripped sources. Its name tells these sources and this Node from all others. */
function folderOf(names) {
  const hash = createHash("sha256").update(process.version);
  for (const name of names) hash.update(name).update(readFileSync(join(SOURCES, name)));
  return pathOf(`../node_modules/.cache/batchd/stripped-${hash.digest("hex").slice(0, 16)}`);
}

const names = readdirSync(SOURCES, { recursive: true }).filter((name) => name.endsWith(".ts"));
const folder = folderOf(names.toSorted());
if (!existsSync(folder)) {
  spawnSync(process.execPath, [pathOf("strip-types.js"), SOURCES, folder], {
    stdio: "ignore",
    // Options of Node may name this module, and the process would begin another one.
    env: { ...process.env, NODE_OPTIONS: "" },
  });
}
if (existsSync(folder)) {
  registerHooks({
    load(url, context, next) {
      if (!url.startsWith(URL_OF_SOURCES)) return next(url, context);
      const path = join(folder, url.slice(URL_OF_SOURCES.length));
      // A later start of changed sources removes the folder of a server that still runs.
      if (!existsSync(path)) return next(url, context);
      return { format: "module", source: readFileSync(path, "utf8"), shortCircuit: true };
    },
  });
}
