/**
 * Joins the sources of batchd and the packages that they load into a few files, from which the tests start processes. A
 * start then loads 200 modules instead of 900 and takes half of the processor time, and the tests start hundreds of
 * processes.
 *
 * No module may behave differently. Each one keeps its own address in `import.meta.url`, by which it finds the migrations, the
 * pages and its threads. Only one thing is left out: a server does not collect the garbage of its start, which takes a sixth of
 * the start and makes it smaller while it is idle. The tests of `npm start`, of the package, of the modules that a start loads,
 * of turns and of the order of syncs use the real thing.
 */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { type Plugin, rolldown } from "rolldown";
import { prepare, ROOT, versionOf } from "./prepared.ts";

const SOURCES = join(ROOT, "src");

/** They are loaded from their own folders: they have native code, or files that they look for beside themselves. */
const EXTERNAL = /^(?:better-sqlite3|pino|thread-stream)(?:\/|$)/;

/** Makes the bundle of these sources unless it is there, and names it to the processes of the tests. */
export async function setup(): Promise<void> {
  const version = versionOf([], ["test/support/bundle.ts", "package-lock.json", "src"]);
  process.env["BATCHD_TEST_BUNDLE"] = join(await prepare("bundle", version, build), "main.js");
}

async function build(folder: string): Promise<void> {
  await using bundle = await rolldown({
    input: { main: join(SOURCES, "main.ts") },
    platform: "node",
    external: EXTERNAL,
    treeshake: false,
    plugins: [joinRequired, keepAddresses, keepGarbage],
  });
  await bundle.write({ dir: folder, format: "esm", minify: false });
  // Node would parse each file to find that it is a module.
  writeFileSync(join(folder, "package.json"), '{"type":"module"}');
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

const COLLECTION = "  collectStartupGarbage();\n";

const keepGarbage: Plugin = {
  name: "keep-garbage",
  transform(code, id) {
    if (id !== join(SOURCES, "cli/serve.ts")) return null;
    if (!code.includes(COLLECTION)) throw new Error(`there is no ${COLLECTION}`);
    return code.replace(COLLECTION, "");
  },
};
