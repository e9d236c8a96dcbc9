/** The rules of imports. Each is a function from files to the sentences that name a break. */
import { type Allowed, BLOBS, LAYERS, LOCATION, PACKAGES, STORE, UPSTREAM } from "./layers.ts";
import {
  type Import,
  importsOf,
  inSource,
  isSource,
  type SourceFile,
  startsWithAny,
} from "./source-tree.ts";

/** The modules of Node that the pure rules may use: none of them waits, reads or sends. */
const PURE_FOLDERS = ["contract/", "text/", "batch/"];
const PURE_MODULES = ["node:buffer", "node:crypto"];

function layerOf(path: string): Allowed | undefined {
  const beginnings = Object.keys(LAYERS).filter((beginning) => path.startsWith(beginning));
  return LAYERS[beginnings.toSorted((a, b) => b.length - a.length)[0] ?? ""];
}

const folderOf = (path: string) => path.slice(0, path.lastIndexOf("/") + 1);

const covers = (allowed: string, path: string) =>
  allowed.endsWith("/*") ? folderOf(path) === allowed.slice(0, -1) : path.startsWith(allowed);

function isAllowed(path: string, { target, isTypeOnly }: Import, layer: Allowed): boolean {
  const isNeighbour = folderOf(path) !== "" && folderOf(path) === folderOf(target);
  const known = isTypeOnly ? (layer.mayKnow ?? []) : [];
  return isNeighbour || [...layer.may, ...known].some((allowed) => covers(allowed, target));
}

/** Returns every import of every file, with paths as the tables have them. */
const allImports = (files: readonly SourceFile[]) =>
  files.flatMap((file) =>
    importsOf(file).map((each) => ({
      path: inSource(file.path),
      imported: { ...each, target: each.isOwn ? inSource(each.target) : each.target },
    })),
  );

const sourceImports = (files: readonly SourceFile[]) => allImports(files.filter(isSource));

export function upwardImports(files: readonly SourceFile[]): string[] {
  const homeless = files
    .filter((file) => isSource(file) && layerOf(inSource(file.path)) === undefined)
    .map((file) => `${file.path} has no layer`);
  const upward = sourceImports(files)
    .filter(({ imported }) => imported.isOwn)
    .filter(({ path, imported }) => !isAllowed(path, imported, layerOf(path) ?? { may: [] }))
    .map(({ path, imported }) => `${path} → ${imported.target}`);
  return [...homeless, ...upward];
}

/** Finds cycles among imports, also of types: a cycle of either makes two files one. */
export function importCycles(files: readonly SourceFile[]): string[] {
  const edges = new Map<string, string[]>();
  for (const { path, imported } of allImports(files)) {
    if (imported.isOwn) edges.set(path, [...(edges.get(path) ?? []), imported.target]);
  }
  const done = new Set<string>();
  const cycles: string[] = [];
  const visit = (path: string, trail: readonly string[]) => {
    const since = trail.indexOf(path);
    if (since !== -1) cycles.push([...trail.slice(since), path].join(" → "));
    if (since !== -1 || done.has(path)) return;
    for (const next of edges.get(path) ?? []) visit(next, [...trail, path]);
    done.add(path);
  };
  for (const path of edges.keys()) visit(path, []);
  return cycles;
}

/**
 * Pairs of folders below `src/` that import each other, and so are one. A loose file is a room of its own, and so is a port: a
 * folder may use its neighbour while that one knows its port.
 */
export function folderCircles(files: readonly SourceFile[]): string[] {
  const roomOf = (path: string) => (isPort(path) ? path : folderOf(path) || path);
  const pairs = new Set<string>();
  for (const { path, imported } of sourceImports(files)) {
    if (imported.isOwn) pairs.add(`${roomOf(path)} ↔ ${roomOf(imported.target)}`);
  }
  return [...pairs].filter((pair) => {
    const [one = "", other = ""] = pair.split(" ↔ ");
    return one < other && pairs.has(`${other} ↔ ${one}`);
  });
}

const isPort = (path: string) =>
  [...UPSTREAM, BLOBS, ...LOCATION].includes(path) || covers(STORE, path);

export function strayPackages(files: readonly SourceFile[]): string[] {
  return sourceImports(files)
    .filter(({ imported }) => !imported.isOwn && !imported.target.startsWith("node:"))
    .filter(({ path, imported }) => !startsWithAny(path, PACKAGES[imported.target] ?? []))
    .map(({ path, imported }) => `${path} imports ${imported.target}`);
}

export function impureImports(files: readonly SourceFile[]): string[] {
  return sourceImports(files)
    .filter(
      ({ path, imported }) =>
        startsWithAny(path, PURE_FOLDERS) && imported.target.startsWith("node:"),
    )
    .filter(({ imported }) => !PURE_MODULES.includes(imported.target))
    .map(({ path, imported }) => `${path} imports ${imported.target}`);
}
