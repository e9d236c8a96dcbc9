/** The tables of who may import what. `import-rules.ts` holds the tree to them. */

export interface Allowed {
  /**
   * The beginnings of paths below `src/`; `store/*` means the files of that folder alone. A file may always import from
   * its own folder.
   */
  readonly may: readonly string[];
  /** The paths from which it may import types only. */
  readonly mayKnow?: readonly string[];
}

/** The ports. Only `runtime/storage/` imports what is behind the first two. */
export const STORE = "store/*";
export const BLOBS = "blobs/blobs.ts";
export const UPSTREAM = [
  "upstream/upstream.ts",
  "upstream/request.ts",
  "upstream/target-report.ts",
];
export const LOCATION = [
  "locations/location.ts",
  "locations/location-path.ts",
  "locations/parcel-bytes.ts",
  "locations/watched-file.ts",
  "locations/commits.ts",
];

/** The files to which all parts report. */
const TELEMETRY = [
  "telemetry/audit-log.ts",
  "telemetry/log.ts",
  "telemetry/metrics.ts",
  "telemetry/repeats.ts",
  "telemetry/target-metrics.ts",
  "telemetry/tracing.ts",
];

/** The files that every part with side effects may use. */
const BASE = ["contract/", "text/", "batch/", "clock.ts", ...TELEMETRY, "resources/time-slice.ts"];

const BELOW_ENGINE = [
  ...[...BASE, STORE, BLOBS, "blobs/blob-intents.ts", ...UPSTREAM, "loop.ts", "one-by-one.ts"],
  ...["resources/client-work.ts", "resources/semaphore.ts"],
  ...["shared-runs.ts", "system-code.ts", "version.ts"],
];

/** The folders of the engine, from bottom to top. */
const ENGINE = [
  ...["engine/dispatch/", "engine/steps/", "engine/fleet/", "engine/journal/", "engine/chunks/"],
  ...["engine/results/", "engine/intake/", "engine/deriving/", "engine/housekeeping/"],
];

/**
 * The allowed imports, from bottom to top. The longest beginning of a file's path decides. HTTP must never import the
 * engine, nor the engine HTTP. They share the store, and `runtime/runtime.ts` passes a nudge from one to the other.
 */
export const LAYERS: Readonly<Record<string, Allowed>> = {
  "text/": { may: [] },
  "contract/": { may: [] },
  "contract/openapi.ts": { may: ["version.ts"] },
  "batch/": { may: ["contract/", "text/"] },
  "formats/": { may: ["text/", "batch/", "contract/", "resources/time-slice.ts"] },
  "version.ts": { may: [] },
  "words.ts": { may: [] },
  "clock.ts": { may: [] },
  "redactor.ts": { may: [] },
  "lazy.ts": { may: [] },
  "errors.ts": { may: ["text/truncate.ts"] },
  "printable.ts": { may: [] },
  "one-by-one.ts": { may: [] },
  "shared-runs.ts": { may: [] },
  "system-code.ts": { may: [] },
  "closers.ts": { may: [] },
  "resources/": { may: ["batch/sums.ts", "clock.ts"], mayKnow: ["text/", "batch/", "config/"] },
  "telemetry/": {
    may: ["text/truncate.ts", "clock.ts", "printable.ts", "version.ts"],
    mayKnow: ["batch/", "contract/", "redactor.ts"],
  },
  "telemetry/log.ts": {
    may: ["printable.ts", "store/failures.ts", "system-code.ts", "telemetry/repeats.ts"],
    mayKnow: ["clock.ts"],
  },
  "telemetry/tracing-otlp.ts": {
    may: ["text/truncate.ts", "clock.ts", "resources/tiny-pieces.ts", "version.ts"],
    mayKnow: ["redactor.ts", "telemetry/log.ts", "telemetry/tracing.ts"],
  },
  "telemetry/metrics.ts": {
    may: ["version.ts"],
    mayKnow: ["batch/", "contract/", STORE, ...UPSTREAM],
  },
  "telemetry/metric-text.ts": { may: ["resources/time-slice.ts"] },
  "telemetry/target-metrics.ts": { may: [], mayKnow: ["batch/", ...UPSTREAM] },
  "loop.ts": { may: ["clock.ts", "telemetry/log.ts"] },
  "config/": {
    may: ["contract/", "telemetry/log.ts"],
    mayKnow: ["batch/", "telemetry/metrics.ts"],
  },
  "config/projects.ts": { may: ["contract/", "batch/project.ts"] },
  "config/pipeline.ts": { may: ["contract/", "batch/template.ts"] },
  "config/config-watcher.ts": { may: ["clock.ts", "telemetry/log.ts", "loop.ts"] },
  "store/": { may: [], mayKnow: ["batch/", "contract/"] },
  // What the commits of both adapters decide alike.
  "store/spending.ts": { may: ["batch/"] },
  "store/projects.ts": { may: ["contract/project.ts"] },
  // What both adapters say to their databases in the same words.
  "store/sql/": { may: [STORE, "batch/", "contract/"] },
  "store/postgres/": {
    may: [
      ...[STORE, "store/sql/", "batch/", "contract/", "clock.ts", "one-by-one.ts"],
      ...["resources/client-work.ts", "resources/client-turns.ts"],
    ],
  },
  "store/sqlite/": {
    may: [STORE, "store/sql/", "batch/", "contract/", "resources/time-slice.ts", "shared-runs.ts"],
    mayKnow: ["clock.ts"],
  },
  "blobs/": { may: ["resources/semaphore.ts"] },
  "blobs/s3": {
    may: [
      "clock.ts",
      "resources/name-lookup.ts",
      "resources/semaphore.ts",
      "resources/tiny-pieces.ts",
    ],
  },
  "blobs/blob-intents.ts": { may: ["clock.ts", "telemetry/log.ts"], mayKnow: [STORE] },
  ...Object.fromEntries(
    UPSTREAM.map((port) => [
      port,
      { may: [], mayKnow: ["batch/", "contract/", "config/upstreams.ts"] },
    ]),
  ),
  "upstream/exchange/": {
    may: [
      ...BASE,
      "config/secrets.ts",
      "redactor.ts",
      "resources/name-lookup.ts",
      "resources/reading-time.ts",
      "version.ts",
    ],
    mayKnow: ["config/upstreams.ts", ...UPSTREAM],
  },
  "upstream/capacity/": {
    may: [...BASE, "upstream/capacity/"],
    mayKnow: ["config/upstreams.ts", "resources/turn-budget.ts", "upstream/exchange/"],
  },
  "upstream/": {
    may: [...BASE, "resources/turn-budget.ts", "version.ts", "upstream/"],
    mayKnow: ["config/upstreams.ts"],
  },
  "engine/": { may: [...BELOW_ENGINE, "engine/"], mayKnow: ["resources/memory-budget.ts"] },
  ...Object.fromEntries(
    ENGINE.map((folder, at) => [
      folder,
      {
        may: [...BELOW_ENGINE, ...ENGINE.slice(0, at)],
        mayKnow: ["resources/memory-budget.ts"],
      },
    ]),
  ),
  "engine/dispatch/": {
    may: BASE,
    mayKnow: [STORE, ...UPSTREAM, "loop.ts"],
  },
  "locations/": {
    may: [
      ...LOCATION,
      "locations/",
      "text/truncate.ts",
      "config/secrets.ts",
      "lazy.ts",
      "printable.ts",
      "redactor.ts",
    ],
    mayKnow: ["batch/", "clock.ts", "config/locations.ts"],
  },
  "locations/commits.ts": {
    may: ["text/truncate.ts", "locations/location.ts"],
  },
  "locations/git/": {
    may: [...LOCATION, "blobs/file-system.ts", "lazy.ts"],
    mayKnow: ["clock.ts", "config/locations.ts"],
  },
  "locations/oxen/": {
    may: [...LOCATION, "resources/name-lookup.ts", "resources/reading-time.ts"],
    mayKnow: ["config/locations.ts"],
  },
  "locations/s3/": {
    may: [
      ...LOCATION,
      "blobs/s3-client.ts",
      "blobs/s3-error.ts",
      "blobs/s3-reading.ts",
      "clock.ts",
      "config/storage.ts",
      "resources/tiny-pieces.ts",
    ],
    mayKnow: ["batch/", "config/locations.ts"],
  },
  "locations/folder/": {
    may: [
      ...LOCATION,
      "batch/random-id.ts",
      "blobs/file-system.ts",
      "resources/semaphore.ts",
      "system-code.ts",
    ],
    mayKnow: ["clock.ts"],
  },
  "webhooks/": {
    may: [
      ...BASE,
      "loop.ts",
      "resources/address-guard.ts",
      "resources/reading-time.ts",
      "version.ts",
    ],
    mayKnow: [STORE, "config/schema.ts"],
  },
  "deliveries/": {
    may: [
      ...BASE,
      ...LOCATION,
      BLOBS,
      "formats/",
      "loop.ts",
      "resources/address-guard.ts",
      "deliveries/",
      "blobs/file-system.ts",
      "resources/client-work.ts",
      "resources/semaphore.ts",
      "resources/name-lookup.ts",
      "system-code.ts",
    ],
    mayKnow: [STORE, "blobs/blob-intents.ts", "config/deliveries.ts", "locations/locations.ts"],
  },
  "api/": {
    may: [
      ...BASE,
      STORE,
      BLOBS,
      "blobs/blob-intents.ts",
      ...LOCATION,
      "errors.ts",
      "formats/",
      "one-by-one.ts",
      "shared-runs.ts",
      "loop.ts",
      "resources/client-work.ts",
    ],
    mayKnow: [...UPSTREAM, "locations/locations.ts", "resources/memory-budget.ts"],
  },
  "http/": {
    may: [
      ...[...BASE, "api/", "errors.ts", "lazy.ts", "system-code.ts"],
      ...["resources/arrivals.ts", "resources/semaphore.ts"],
      ...["resources/client-work.ts", "resources/turn-budget.ts"],
    ],
    mayKnow: [STORE, BLOBS, ...UPSTREAM, "config/schema.ts", "resources/memory-budget.ts"],
  },
  "web/": {
    may: [
      "contract/",
      "text/",
      "batch/",
      "clock.ts",
      "errors.ts",
      "lazy.ts",
      "version.ts",
      "words.ts",
      "api/key-text.ts",
      "http/",
    ],
    mayKnow: ["api/", "store/keys.ts", "telemetry/"],
  },
  "runtime/storage/": {
    may: ["blobs/", "store/", "clock.ts", "config/storage.ts"],
    mayKnow: ["closers.ts", "config/"],
  },
  "moving/": { may: [STORE, BLOBS, "words.ts"], mayKnow: ["clock.ts"] },
  "runtime/use-cases.ts": {
    may: ["api/", "config/prices.ts", "config/loopback.ts", "resources/memory-budget.ts"],
    mayKnow: [""],
  },
  "runtime/": { may: [""] },
  "terminal/": { may: ["config/client.ts", "printable.ts"] },
  "client/": {
    may: [
      "contract/",
      "text/",
      "batch/",
      "clock.ts",
      "config/",
      "formats/",
      "printable.ts",
      "version.ts",
      "words.ts",
      "terminal/",
    ],
  },
  "cli/": {
    may: [
      "client/",
      "terminal/",
      "runtime/",
      "config/",
      "contract/",
      "batch/",
      "clock.ts",
      "errors.ts",
      "printable.ts",
      "redactor.ts",
      "version.ts",
      "words.ts",
      ...TELEMETRY,
    ],
  },
  "cli/run-batch.ts": {
    may: [
      "client/",
      "terminal/",
      "config/",
      "contract/",
      "errors.ts",
      "http/present.ts",
      "words.ts",
    ],
    mayKnow: ["batch/", "runtime/runtime.ts"],
  },
  "cli/administration-output.ts": {
    may: ["terminal/", "contract/", "errors.ts", "words.ts"],
    mayKnow: ["config/overrides.ts", "runtime/administration.ts", "store/page.ts"],
  },
  "cli/keys.ts": {
    may: ["client/", "terminal/", "config/", "contract/", "errors.ts", "http/present.ts"],
    mayKnow: ["api/", "batch/", "runtime/administration.ts", "store/*"],
  },
  "cli/projects.ts": {
    may: ["client/", "terminal/", "config/", "contract/", "clock.ts", "http/present.ts"],
    mayKnow: ["runtime/administration.ts", "store/projects.ts"],
  },
  "cli/migrate-to.ts": {
    may: ["closers.ts", "moving/", "runtime/"],
    mayKnow: ["clock.ts", "config/schema.ts"],
  },
  "main.ts": { may: ["cli/cli.ts"] },
};

/** The only places below `src/` that may import a package. No file may import a package that is not listed. */
export const PACKAGES: Readonly<Record<string, readonly string[]>> = {
  hono: ["http/", "web/"],
  idiomorph: ["web/assets/globals.d.ts"],
  uplot: ["web/assets/globals.d.ts"],
  "@hono/node-server": ["http/", "web/"],
  "@fastify/busboy": ["http/"],
  "hash-wasm": ["locations/oxen/upload.ts"],
  undici: ["locations/oxen/", "upstream/exchange/undici.ts", "webhooks/sender.ts"],
  standardwebhooks: ["webhooks/sender.ts"],
  "ipaddr.js": ["resources/address-guard.ts"],
  "@aws-sdk/client-s3": ["blobs/s3", "locations/s3/"],
  "@aws-sdk/credential-provider-node": ["blobs/s3"],
  "@aws-sdk/lib-storage": ["blobs/s3"],
  "@aws-sdk/s3-request-presigner": ["blobs/s3"],
  "drizzle-orm": ["store/sql/", "store/sqlite/", "store/postgres/"],
  "better-sqlite3": ["store/sqlite/"],
  pg: ["store/postgres/"],
  zod: ["contract/", "config/", "http/"],
  "zod-openapi": ["contract/"],
  "hyparquet-writer": ["formats/parquet.ts"],
  yaml: ["config/file.ts", "contract/openapi.ts", "config/pipeline.ts"],
  leven: ["config/problems.ts"],
  pino: ["telemetry/log.ts"],
  "prom-client": [
    "telemetry/metrics.ts",
    "telemetry/target-metrics.ts",
    "telemetry/attempt-histogram.ts",
    "telemetry/metric-text.ts",
  ],
  "@opentelemetry/api": ["telemetry/tracing-otlp.ts"],
  "@opentelemetry/exporter-trace-otlp-http": ["telemetry/tracing-otlp.ts"],
  "@opentelemetry/exporter-trace-otlp-proto": ["telemetry/tracing-otlp.ts"],
  "@opentelemetry/resources": ["telemetry/tracing-otlp.ts"],
  "@opentelemetry/sdk-trace": ["telemetry/tracing-otlp.ts"],
  commander: ["cli/", "client/"],
  openai: ["client/"],
  "@bomb.sh/tab": ["client/completion.ts"],
  "cli-progress": ["client/progress.ts"],
};
