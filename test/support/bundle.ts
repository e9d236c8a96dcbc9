/**
 * Joins the sources of batchd and the packages that they load into a few files, from which the tests start processes. A
 * start then loads 200 modules instead of 900 and takes half of the processor time, and the tests start hundreds of
 * processes.
 *
 * No module may behave differently. Nothing is left out, and each one keeps its own address in `import.meta.url`, by which it
 * finds the migrations, the pages and its threads. The tests of `npm start`, of the package, of the modules that a start
 * loads and of the order of syncs use the real thing.
 */
import { createHash } from "node:crypto";
import {
  existsSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { type Plugin, rolldown } from "rolldown";

const ROOT = join(import.meta.dirname, "../..");
const SOURCES = join(ROOT, "src");
const CACHE = join(ROOT, "node_modules/.cache/batchd-test");
/** A bundle that no run has used for so long is removed. */
const UNUSED_MS = 24 * 60 * 60_000;

/** They are loaded from their own folders: they have native code, or files that they look for beside themselves. */
const EXTERNAL = /^(?:better-sqlite3|pino|thread-stream)(?:\/|$)/;

/** Makes the bundle of these sources unless it is there, and names it to the processes of the tests. */
export async function setup(): Promise<void> {
  const folder = join(CACHE, `bundle-${hashOfSources()}`);
  if (existsSync(folder)) {
    utimesSync(folder, new Date(), new Date());
  } else {
    removeUnused();
    await build(folder);
  }
  process.env["BATCHD_TEST_BUNDLE"] = join(folder, "main.js");
}

/** A bundle has the addresses of its sources, so a copy of the checkout needs another one. */
function hashOfSources(): string {
  const hash = createHash("sha256").update(ROOT);
  hash.update(readFileSync(import.meta.filename));
  hash.update(readFileSync(join(ROOT, "package-lock.json")));
  for (const name of readdirSync(SOURCES, { recursive: true, encoding: "utf8" }).toSorted()) {
    if (name.endsWith(".ts")) hash.update(name).update(readFileSync(join(SOURCES, name)));
  }
  return hash.digest("hex").slice(0, 16);
}

function removeUnused(): void {
  if (!existsSync(CACHE)) return;
  for (const name of readdirSync(CACHE).filter((each) => each.startsWith("bundle-"))) {
    const path = join(CACHE, name);
    const used = statSync(path, { throwIfNoEntry: false });
    if (used && Date.now() - used.mtimeMs > UNUSED_MS)
      rmSync(path, { recursive: true, force: true });
  }
}

/** Another run may build the same one at the same time: the first to end provides it. */
async function build(folder: string): Promise<void> {
  const unfinished = `${folder}.${process.pid}`;
  await using bundle = await rolldown({
    input: { main: join(SOURCES, "main.ts") },
    platform: "node",
    external: EXTERNAL,
    treeshake: false,
    plugins: [joinRequired, keepAddresses],
  });
  await bundle.write({ dir: unfinished, format: "esm", minify: false });
  // Node would parse each file to find that it is a module.
  writeFileSync(join(unfinished, "package.json"), '{"type":"module"}');
  try {
    renameSync(unfinished, folder);
  } catch {
    rmSync(unfinished, { recursive: true });
  }
}

/** Joins what `drizzle.ts` loads with `require` for a reason that a bundle does not have. */
const joinRequired: Plugin = {
  name: "join-required",
  transform(code, id) {
    if (!id.startsWith(SOURCES) || !id.endsWith("drizzle.ts")) return null;
    const imports: string[] = [];
    const joined = code
      .replace("const require = createRequire(import.meta.url);", "")
      .replaceAll(/require\("([^"]+)"\)/g, (_, name: string) => {
        const local = `required${imports.length}`;
        imports.push(`import * as ${local} from ${JSON.stringify(name)};`);
        return local;
      });
    return [...imports, joined].join("\n");
  },
};

/** The module that has `import.meta.url` finds the migrations, the pages and its threads where the sources have them. */
const keepAddresses: Plugin = {
  name: "keep-addresses",
  transform(code, id) {
    if (!id.startsWith(SOURCES) || !code.includes("import.meta.url")) return null;
    return code.replaceAll("import.meta.url", JSON.stringify(pathToFileURL(id).href));
  },
};
