/** The rules of the source tree. Each is a function from files to the sentences that break it. */
import {
  type Import,
  importsOf,
  lineCount,
  type SourceFile,
  withoutComments,
} from "./source-tree.ts";

interface Allowed {
  /** Beginnings of paths below `src/`. A file may always import its neighbours in the same folder. */
  readonly may: readonly string[];
  /** What it may know only by its types. */
  readonly mayKnow?: readonly string[];
}

/** The port for facts, one file for each part of it. */
const STORE_PORT = [
  "store/store.ts",
  "store/claim.ts",
  "store/deliveries.ts",
  "store/idempotency.ts",
  "store/intents.ts",
  "store/segment-key.ts",
  "store/uploads.ts",
];

/** Where parts tell what they do. */
const OBSERVERS = ["log.ts", "metrics.ts", "tracing.ts"];

/**
 * Who may import whom. The longest beginning of a file's path decides. HTTP and the engine never meet: they
 * share the store, and a nudge that `runtime.ts` hands over.
 */
const LAYERS: Readonly<Record<string, Allowed>> = {
  "contract/": { may: [] },
  "contract/openapi.ts": { may: ["contract/", "version.ts"] },
  "errors.ts": { may: ["batch/shown.ts"] },
  "clock.ts": { may: [] },
  "log-events.ts": { may: [] },
  "log.ts": { may: ["log-events.ts"] },
  "version.ts": { may: [] },
  "redactor.ts": { may: [] },
  "metric-table.ts": { may: [] },
  "attempt-histogram.ts": { may: [] },
  "metrics.ts": {
    may: ["attempt-histogram.ts", "metric-table.ts", "version.ts"],
    mayKnow: ["batch/", "contract/", "store/store.ts", "upstream/upstream.ts"],
  },
  "tracing.ts": { may: [], mayKnow: ["batch/"] },
  "tracing-otlp.ts": { may: ["version.ts"], mayKnow: ["tracing.ts", "log.ts"] },
  "loop.ts": { may: ["clock.ts", "log.ts"] },
  "memory-budget.ts": { may: [] },
  "descriptors.ts": { may: [], mayKnow: ["config/"] },
  "time-slice.ts": { may: [], mayKnow: ["batch/"] },
  "config/": { may: ["log.ts", "contract/"] },
  "config/watch.ts": { may: ["clock.ts", "log.ts", "loop.ts"] },
  "config/reload.ts": { may: [], mayKnow: ["log.ts", "metrics.ts"] },
  "batch/": { may: ["contract/"] },
  ...Object.fromEntries(
    STORE_PORT.map((path) => [path, { may: [], mayKnow: ["batch/", "contract/"] }]),
  ),
  "store/": { may: [...STORE_PORT, "batch/", "contract/"] },
  "blobs/blobs.ts": { may: [] },
  "blobs/": { may: ["blobs/blobs.ts"] },
  "upstream/upstream.ts": { may: [], mayKnow: ["batch/", "contract/", "config/upstreams.ts"] },
  "upstream/exchange/": {
    may: [
      "batch/",
      "contract/",
      "config/secrets.ts",
      "clock.ts",
      "redactor.ts",
      "version.ts",
      "time-slice.ts",
      "upstream/watch.ts",
    ],
    mayKnow: ["config/upstreams.ts", "upstream/upstream.ts"],
  },
  "upstream/capacity/": {
    may: ["batch/", "clock.ts", ...OBSERVERS, "upstream/limiter.ts"],
    mayKnow: ["config/upstreams.ts", "upstream/need.ts", "upstream/exchange/"],
  },
  "upstream/": {
    may: ["batch/", "contract/", "clock.ts", ...OBSERVERS, "version.ts", "upstream/"],
    mayKnow: ["config/upstreams.ts"],
  },
  "blob-intents.ts": { may: ["clock.ts", "log.ts"], mayKnow: [...STORE_PORT, "blobs/blobs.ts"] },
  "files.ts": {
    may: [
      "blob-intents.ts",
      "batch/",
      "contract/",
      ...STORE_PORT,
      "blobs/blobs.ts",
      "errors.ts",
      "clock.ts",
      ...OBSERVERS,
    ],
  },
  "batches.ts": {
    may: ["batch/", "contract/", ...STORE_PORT, "errors.ts", "clock.ts", ...OBSERVERS],
  },
  "uploads.ts": {
    may: [
      "blob-intents.ts",
      "files.ts",
      "batch/",
      "contract/",
      ...STORE_PORT,
      "blobs/blobs.ts",
      "errors.ts",
      "clock.ts",
      ...OBSERVERS,
    ],
  },
  "idempotency.ts": {
    may: ["batch/shown.ts", "contract/", ...STORE_PORT, "errors.ts", "clock.ts", "log.ts"],
  },
  "models.ts": { may: ["batch/shown.ts", "upstream/upstream.ts", "errors.ts"] },
  "interactive.ts": {
    may: [
      "batch/",
      "time-slice.ts",
      "contract/",
      "upstream/upstream.ts",
      "errors.ts",
      "clock.ts",
      "tracing.ts",
    ],
  },
  "engine/": {
    may: [
      "blob-intents.ts",
      "batch/",
      "contract/",
      ...STORE_PORT,
      "blobs/blobs.ts",
      "upstream/upstream.ts",
      "clock.ts",
      ...OBSERVERS,
      "loop.ts",
      "memory-budget.ts",
      "time-slice.ts",
    ],
  },
  "webhooks/": {
    may: ["batch/", "clock.ts", ...OBSERVERS, "loop.ts", "version.ts"],
    mayKnow: ["contract/", ...STORE_PORT, "config/schema.ts"],
  },
  "http/": {
    may: [
      "files.ts",
      "uploads.ts",
      "batches.ts",
      "models.ts",
      "idempotency.ts",
      "interactive.ts",
      "contract/",
      "batch/",
      "errors.ts",
      "memory-budget.ts",
      ...OBSERVERS,
      "clock.ts",
      "time-slice.ts",
    ],
    mayKnow: [...STORE_PORT, "blobs/blobs.ts", "upstream/upstream.ts", "config/schema.ts"],
  },
  "storage.ts": { may: ["blobs/", "store/"] },
  "runtime.ts": { may: [""] },
  "cli.ts": {
    may: [
      "runtime.ts",
      "config/",
      "contract/",
      "clock.ts",
      "version.ts",
      ...OBSERVERS,
      "errors.ts",
      "redactor.ts",
    ],
  },
  "main.ts": { may: ["cli.ts"] },
};

/** The only places below `src/` that may import a package. A package that is not here may be imported nowhere. */
const PACKAGES: Readonly<Record<string, readonly string[]>> = {
  hono: ["http/"],
  "@hono/node-server": ["http/"],
  "@fastify/busboy": ["http/"],
  undici: ["upstream/exchange/undici.ts", "webhooks/sender.ts"],
  standardwebhooks: ["webhooks/sender.ts"],
  "ipaddr.js": ["webhooks/address-guard.ts"],
  "drizzle-orm": ["store/sqlite/"],
  "better-sqlite3": ["store/sqlite/"],
  zod: ["contract/", "config/", "http/"],
  "zod-openapi": ["contract/"],
  yaml: ["config/file.ts", "contract/openapi.ts"],
  leven: ["config/problems.ts"],
  pino: ["log.ts"],
  "prom-client": ["metrics.ts", "attempt-histogram.ts"],
  "@opentelemetry/api": ["tracing-otlp.ts"],
  "@opentelemetry/exporter-trace-otlp-http": ["tracing-otlp.ts"],
  "@opentelemetry/exporter-trace-otlp-proto": ["tracing-otlp.ts"],
  "@opentelemetry/resources": ["tracing-otlp.ts"],
  "@opentelemetry/sdk-trace": ["tracing-otlp.ts"],
  commander: ["cli.ts"],
};

/** What the pure rules may take from Node: nothing that waits, reads or sends. */
const PURE_FOLDERS = ["contract/", "batch/"];
const PURE_MODULES = ["node:buffer", "node:crypto"];

const startsWithAny = (text: string, beginnings: readonly string[]) =>
  beginnings.some((beginning) => text.startsWith(beginning));

const inSource = (path: string) => path.replace(/^src\//, "");
const isSource = ({ path }: SourceFile) => path.startsWith("src/");

function layerOf(path: string): Allowed | undefined {
  const beginnings = Object.keys(LAYERS).filter((beginning) => path.startsWith(beginning));
  return LAYERS[beginnings.toSorted((a, b) => b.length - a.length)[0] ?? ""];
}

const folderOf = (path: string) => path.slice(0, path.lastIndexOf("/") + 1);

function isAllowed(path: string, { target, isTypeOnly }: Import, layer: Allowed): boolean {
  const isNeighbour = folderOf(path) !== "" && folderOf(path) === folderOf(target);
  const known = isTypeOnly ? (layer.mayKnow ?? []) : [];
  return isNeighbour || startsWithAny(target, [...layer.may, ...known]);
}

/** Every import of every file below `src/`, with paths as the tables write them. */
const sourceImports = (files: readonly SourceFile[]) =>
  files.filter(isSource).flatMap((file) =>
    importsOf(file).map((each) => ({
      path: inSource(file.path),
      imported: { ...each, target: each.isOwn ? inSource(each.target) : each.target },
    })),
  );

function upwardImports(files: readonly SourceFile[]): string[] {
  const homeless = files
    .filter((file) => isSource(file) && layerOf(inSource(file.path)) === undefined)
    .map((file) => `${file.path} has no layer`);
  const upward = sourceImports(files)
    .filter(({ imported }) => imported.isOwn)
    .filter(({ path, imported }) => !isAllowed(path, imported, layerOf(path) ?? { may: [] }))
    .map(({ path, imported }) => `${path} → ${imported.target}`);
  return [...homeless, ...upward];
}

/** Cycles of what is loaded, and of types too: both make two files one. */
function importCycles(files: readonly SourceFile[]): string[] {
  const edges = new Map<string, string[]>();
  for (const { path, imported } of sourceImports(files)) {
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

function strayPackages(files: readonly SourceFile[]): string[] {
  return sourceImports(files)
    .filter(({ imported }) => !imported.isOwn && !imported.target.startsWith("node:"))
    .filter(({ path, imported }) => !startsWithAny(path, PACKAGES[imported.target] ?? []))
    .map(({ path, imported }) => `${path} imports ${imported.target}`);
}

function impureImports(files: readonly SourceFile[]): string[] {
  return sourceImports(files)
    .filter(
      ({ path, imported }) =>
        startsWithAny(path, PURE_FOLDERS) && imported.target.startsWith("node:"),
    )
    .filter(({ imported }) => !PURE_MODULES.includes(imported.target))
    .map(({ path, imported }) => `${path} imports ${imported.target}`);
}

/** Files below `src/`, other than `homes`, whose code matches. */
const matchesOutside =
  (pattern: RegExp, homes: readonly string[]) => (files: readonly SourceFile[]) =>
    files
      .filter((file) => isSource(file) && !startsWithAny(inSource(file.path), homes))
      .flatMap((file) =>
        [...withoutComments(file.text).matchAll(pattern)].map(
          ([found]) => `${file.path}: ${found}`,
        ),
      );

const MAX_LINES = 400;
const MAX_STORE_LINES = 500;
const MAX_TEST_LINES = 600;

function maxLinesOf(path: string): number {
  if (path.startsWith("test/")) return MAX_TEST_LINES;
  return /^src\/store\/\w+\/store\.ts$/.test(path) ? MAX_STORE_LINES : MAX_LINES;
}

const longFiles = (files: readonly SourceFile[]) =>
  files
    .filter((file) => lineCount(file.text) > maxLinesOf(file.path))
    .map((file) => `${file.path} has ${lineCount(file.text)} lines`);

const barrels = (files: readonly SourceFile[]) =>
  files
    .filter((file) => isSource(file) && /\/index\.tsx?$/.test(file.path))
    .map((file) => file.path);

export const RULES = {
  "imports point down": upwardImports,
  "nothing imports in a circle": importCycles,
  "each package is imported where it belongs": strayPackages,
  "the rules and the contract touch nothing outside": impureImports,
  "only config.ts reads the environment": matchesOutside(/process\.env\b/g, ["config/config.ts"]),
  "only main.ts ends the process": matchesOutside(/process\.exit\b(?!Code)/g, ["main.ts"]),
  "only clock.ts knows what time it is": matchesOutside(/\bDate\.now\b|\bnew Date\(\)/g, [
    "clock.ts",
  ]),
  // Four of the eight names: the others are also the names of events, reasons and counters.
  "a status is named only where batches are created, moved and stored": matchesOutside(
    /["'](?:validating|in_progress|finalizing|cancelling)["']/g,
    ["contract/", "batch/", "batches.ts", "store/"],
  ),
  "SQL takes the names of statuses from the contract": (files: readonly SourceFile[]) =>
    matchesOutside(
      /'(?:validating|in_progress|finalizing|completed|failed|cancelling)'/g,
      [],
    )(files.filter((file) => file.path.startsWith("src/store/"))),
  "files stay short": longFiles,
  "no folder hides behind an index.ts": barrels,
} as const satisfies Record<string, (files: readonly SourceFile[]) => string[]>;
