/**
 * Keeps what tests start from and what takes long to make, below `node_modules/.cache/batchd-test`. A run makes it when what
 * it is made from has changed.
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
} from "node:fs";
import { join } from "node:path";

export const ROOT = join(import.meta.dirname, "../..");
const CACHE = join(ROOT, "node_modules/.cache/batchd-test");
/** A folder that no run has used for so long is removed. */
const UNUSED_MS = 24 * 60 * 60_000;

/** Names the version of what is made from these texts and from all files that these paths have, or have below them. */
export function versionOf(texts: readonly string[], paths: readonly string[]): string {
  // What is made has addresses of its sources, so a copy of the checkout needs another one.
  const hash = createHash("sha256").update(ROOT);
  for (const text of texts) hash.update(text);
  for (const path of paths.map((each) => join(ROOT, each))) {
    const names = statSync(path).isDirectory()
      ? readdirSync(path, { recursive: true, encoding: "utf8" })
      : [""];
    for (const name of names.toSorted()) {
      const file = join(path, name);
      if (statSync(file).isFile()) hash.update(name).update(readFileSync(file));
    }
  }
  return hash.digest("hex").slice(0, 16);
}

/**
 * Returns the folder of this version, which `make` fills where there is none yet. Another run may make the same one at the same
 * time: the first to end provides it.
 */
export async function prepare(
  kind: string,
  version: string,
  make: (folder: string) => Promise<void>,
): Promise<string> {
  const folder = join(CACHE, `${kind}-${version}`);
  if (existsSync(folder)) {
    utimesSync(folder, new Date(), new Date());
    return folder;
  }
  removeUnused(kind);
  const unfinished = `${folder}.${process.pid}`;
  try {
    await make(unfinished);
    renameSync(unfinished, folder);
  } catch (cause) {
    rmSync(unfinished, { recursive: true, force: true });
    if (!existsSync(folder)) throw cause;
  }
  return folder;
}

function removeUnused(kind: string): void {
  if (!existsSync(CACHE)) return;
  for (const name of readdirSync(CACHE).filter((each) => each.startsWith(`${kind}-`))) {
    const path = join(CACHE, name);
    const used = statSync(path, { throwIfNoEntry: false });
    if (used && Date.now() - used.mtimeMs > UNUSED_MS)
      rmSync(path, { recursive: true, force: true });
  }
}
