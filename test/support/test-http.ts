/** The HTTP API as clients meet it, on real parts, without the engine. */

import { mkdtempSync, rmSync } from "node:fs";
import { join } from "node:path";
import OpenAI from "openai";
import { Access } from "../../src/api/access.ts";
import { BatchLines } from "../../src/api/batch-lines.ts";
import { courseFinder } from "../../src/api/batch-progress.ts";
import { Batches } from "../../src/api/batches.ts";
import { BytesUnderWay } from "../../src/api/bytes-under-way.ts";
import { CopiedInputs } from "../../src/api/copied-inputs.ts";
import { Deliveries } from "../../src/api/deliveries.ts";
import { newDeliveries } from "../../src/api/delivery-requests.ts";
import { DerivedBatches } from "../../src/api/derived-batches.ts";
import { fileSizes } from "../../src/api/file-sizes.ts";
import { Files } from "../../src/api/files.ts";
import { Idempotency } from "../../src/api/idempotency.ts";
import { Interactive } from "../../src/api/interactive.ts";
import { Keys } from "../../src/api/keys.ts";
import { Models } from "../../src/api/models.ts";
import { Projects } from "../../src/api/projects.ts";
import { Results } from "../../src/api/results.ts";
import { Runs } from "../../src/api/runs.ts";
import { searchLimit } from "../../src/api/searches.ts";
import { Tables } from "../../src/api/tables.ts";
import { Uploads } from "../../src/api/uploads.ts";
import { reportUsage } from "../../src/api/usage-report.ts";
import type { Forecast } from "../../src/batch/forecast.ts";
import { BlobIntents } from "../../src/blobs/blob-intents.ts";
import type { Blobs } from "../../src/blobs/blobs.ts";
import { openDiskBlobs } from "../../src/blobs/disk.ts";
import { type Clock, systemClock } from "../../src/clock.ts";
import { UNLIMITED } from "../../src/config/projects.ts";
import type { KeyConfig } from "../../src/config/schema.ts";
import { DEFAULT_SCOPES } from "../../src/contract/scope.ts";
import { passedLines } from "../../src/engine/results/finished-lines.ts";
import { readLinePage } from "../../src/engine/results/line-page.ts";
import { createApp } from "../../src/http/app.ts";
import { listen } from "../../src/http/server.ts";
import { MemoryBudget } from "../../src/resources/memory-budget.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import type { Store } from "../../src/store/store.ts";
import { createLog } from "../../src/telemetry/log.ts";
import { Metrics } from "../../src/telemetry/metrics.ts";
import { NO_TRACING } from "../../src/telemetry/tracing.ts";
import type { UpstreamModel } from "../../src/upstream/upstream.ts";
import { dataRoot } from "./data-root.ts";
import { pathsBelow } from "./files-below.ts";
import { putTables } from "./tables.ts";

export interface TestApiOptions {
  /** The keys of the configuration, with the usual scopes unless they name others. */
  readonly keys?: readonly (Omit<KeyConfig, "scopes"> & Partial<KeyConfig>)[];
  readonly limits?: { readonly maxFileBytes?: number; readonly maxUploadBytes?: number };
  readonly completionWindows?: readonly string[];
  readonly models?: readonly UpstreamModel[];
  /** The clock; the real one when it is left out, and then `advance` adds to it. */
  readonly clock?: Clock;
  /** What is predicted for every batch. */
  readonly forecast?: () => Forecast | null;
  /** The folder of its files; a new one when it is left out. */
  readonly dataDir?: string;
}

export interface TestApi extends AsyncDisposable {
  readonly url: string;
  readonly dataDir: string;
  readonly store: Store;
  readonly keys: Keys;
  readonly blobs: Blobs;
  readonly client: OpenAI;
  /** The events in the log so far. */
  readonly log: readonly string[];
  /** Returns the number of nudges to the engine. */
  nudges(): number;
  /** Returns the bytes of requests that are counted in memory. */
  heldBytes(): number;
  /** Returns every file below the folder of the blobs. */
  storedFiles(): string[];
  setReady(ready: boolean): void;
  /** Moves the date forward. */
  advance(ms: number): void;
  /** Lets time pass for everything that measures it, without its timers. */
  passTime(ms: number): void;
  fetch(path: string, init?: RequestInit): Promise<Response>;
}

/** The one location that deliveries may name. No delivery ever runs here. */
const LOCATION = "share";

export async function startTestApi(options: TestApiOptions = {}): Promise<TestApi> {
  const dataDir = options.dataDir ?? mkdtempSync(join(dataRoot(), "batchd-http-"));
  if (options.dataDir === undefined) putTables(join(dataDir, "batchd.sqlite"));
  let aheadMs = 0;
  let passedMs = 0;
  const clock = options.clock ?? {
    ...systemClock,
    nowMs: () => Date.now() + aheadMs,
    elapsedMs: () => systemClock.elapsedMs() + passedMs,
  };
  const opened = await openSqliteStore({ path: join(dataDir, "batchd.sqlite"), clock });
  if (!opened.ok) throw new Error(opened.problem);
  const { store } = opened;
  const blobs = await openDiskBlobs(join(dataDir, "blobs"));
  const lines: string[] = [];
  const log = createLog("debug", { write: (line) => void lines.push(line) });
  let isReady = true;
  let nudgeCount = 0;
  const nudge = () => {
    nudgeCount++;
  };
  const { maxFileBytes = 209_715_200, maxUploadBytes = 8_589_934_592 } = options.limits ?? {};
  const limits = { max_file_bytes: maxFileBytes, max_upload_bytes: maxUploadBytes };
  const sizes = fileSizes(() => limits);
  const metrics = new Metrics();
  const configured = (options.keys ?? []).map((key) => ({ scopes: [...DEFAULT_SCOPES], ...key }));
  const access = new Access({ store, clock, log, configured: () => configured });
  await access.start();
  const keys = new Keys({ store, clock, log, onChanged: access.apply });
  const intents = new BlobIntents({ store, blobs, log });
  const memory = new MemoryBudget(() => 512 * 1024 * 1024);
  const rulesOf = () => UNLIMITED;
  const projects = new Projects({
    store,
    clock,
    log,
    isConfigured: () => false,
    hasConfiguredKey: () => false,
  });
  const bytesUnderWay = new BytesUnderWay({ store, rulesOf });
  const files = new Files({
    rulesOf,
    bytesUnderWay,
    projects,
    store,
    blobs,
    intents,
    memory,
    clock,
    log,
    tracing: NO_TRACING,
    nudge,
    ...sizes,
  });
  const deliveryDeps = {
    mayWriteTo: (_: string, location: string) => location === LOCATION,
    clientBuckets: {
      refusal: () => null,
      addressRefusal: () => null,
      seal: async () => "sealed",
    },
    clock,
  };
  const batches = new Batches({
    rulesOf,
    store,
    blobs,
    clock,
    log,
    metrics,
    tracing: NO_TRACING,
    prices: () => [],
    newDeliveries: (project, requests) => newDeliveries(project, requests, deliveryDeps),
    completionWindows: () => options.completionWindows ?? ["24h"],
    nudge,
    nudgeStopping: nudge,
    nudgeDeliveries: () => {},
    nudgeChunks: nudge,
    pauseRuns: async () => nudge(),
  });
  const results = new Results({
    clock,
    batches,
    passedLines: (batch, query) => passedLines(batch, query, { store, blobs }),
  });
  const app = createApp({
    maxConnections: Number.POSITIVE_INFINITY,
    files,
    tables: new Tables({ files, clock }),
    copiedInputs: new CopiedInputs({
      files,
      clock,
      locations: { find: () => null },
      readers: results.readers,
      maxFileBytes: sizes.maxFileBytes,
    }),
    runs: new Runs({ store, batches, costsFor: async () => new Map() }),
    uploads: new Uploads({
      rulesOf,
      bytesUnderWay,
      store,
      blobs,
      intents,
      memory,
      clock,
      log,
      files,
      nudge,
      ...sizes,
    }),
    batches,
    results,
    findCourse: courseFinder({ batches, store, nowMs: () => clock.nowMs() }),
    batchLines: new BatchLines({
      batches,
      readers: results.readers,
      readLinePage: (batch, query, reserve) =>
        readLinePage(batch, query, { store, blobs, reserve }),
      passedLines: (batch, query) => passedLines(batch, query, { store, blobs }),
    }),
    derivedBatches: new DerivedBatches({ store, batches }),
    deliveries: new Deliveries({
      ...deliveryDeps,
      store,
      log,
      nudge,
      nudgeHeld: () => {},
      findBatch: (asked) => batches.find(asked),
    }),
    retriesOf: (ids) => store.listRetries(ids),
    models: new Models({ listModels: async () => [...(options.models ?? [])] }, rulesOf),
    idempotency: new Idempotency({ store, clock, log }),
    interactive: new Interactive({
      slots: { take: async () => () => {} },
      upstreams: { findRoute: () => null },
      clock,
      tracing: NO_TRACING,
      defaultModel: () => null,
      rulesOf,
    }),
    maxLineBytes: () => 33_554_432,
    costsFor: async () => new Map(),
    reportUsage: (request) => reportUsage(store, request),
    searches: searchLimit(),
    forecastsFor: async (batches) => {
      const forecasts = batches.map(({ id }) => [id, options.forecast?.() ?? null] as const);
      return new Map(forecasts.flatMap(([id, each]) => (each === null ? [] : [[id, each]])));
    },
    audit: { record: () => {} },
    rulesOf,
    requestCounts: store,
    callers: access,
    listReplicas: () => [],
    reach: { isLoopback: true, allowedHosts: [] },
    keys,
    projects,
    assertReady: async () => {
      if (!isReady) throw new Error("not ready");
    },
    memory,
    metrics,
    takeSnapshot: async () => ({
      targets: [],
      openWork: await store.countOpenWork(),
      heldBytes: {},
      nowMs: clock.nowMs(),
    }),
    clock,
    log,
  });
  const listening = await listen(app, { host: "127.0.0.1", port: 0 }, { clock });
  if (!listening.ok) throw new Error(listening.problem);
  const { url } = listening;
  return {
    url,
    dataDir,
    store,
    blobs,
    keys,
    client: new OpenAI({ baseURL: `${url}/v1`, apiKey: "sk-test", maxRetries: 0 }),
    log: lines,
    heldBytes: () => memory.heldBytes("requests"),
    nudges: () => nudgeCount,
    storedFiles: () => pathsBelow(join(dataDir, "blobs")),
    setReady: (ready) => {
      isReady = ready;
    },
    advance: (ms) => {
      aheadMs += ms;
    },
    passTime: (ms) => {
      passedMs += ms;
    },
    fetch: (path, init) => fetch(url + path, init),
    async [Symbol.asyncDispose]() {
      await listening.close(0);
      await access.close();
      await store.close();
      if (options.dataDir === undefined) rmSync(dataDir, { recursive: true, force: true });
    },
  };
}

/** A body of the API of any kind. A missing key is undefined. */
export interface Wire {
  readonly id: string;
  readonly status: string;
  readonly created_at: number;
  readonly in_progress_at: number | null;
  readonly cancelling_at: number | null;
  readonly cancelled_at: number | null;
  readonly expires_at: number;
  readonly endpoint: string;
  readonly input_file_id: string;
  readonly errors: unknown;
  readonly metadata: Record<string, string> | null;
  readonly object: string;
  readonly data: readonly Wire[];
  readonly first_id: string | null;
  readonly last_id: string | null;
  readonly has_more: boolean;
  readonly error: {
    readonly message: string;
    readonly type: string;
    readonly param: string | null;
    readonly code: string | null;
  };
}

export const wireOf = async (response: Response): Promise<Wire> => (await response.json()) as Wire;

export const idsOn = ({ data }: Wire): string[] => data.map(({ id }) => id);

/** Returns a valid line of batch input. */
export const chatLine = (customId: string, model = "m") =>
  `${JSON.stringify({
    custom_id: customId,
    method: "POST",
    url: "/v1/chat/completions",
    body: { model, messages: [{ role: "user", content: "hi" }] },
  })}\n`;

/** Uploads batch input and returns its id. */
export async function uploadInput(api: TestApi, content = chatLine("a")): Promise<string> {
  const form = new FormData();
  form.set("purpose", "batch");
  form.set("file", new Blob([content]), "input.jsonl");
  const response = await api.fetch("/v1/files", { method: "POST", body: form });
  return (await wireOf(response)).id;
}

export const createBatchBody = (inputFileId: string, more: Record<string, unknown> = {}) =>
  JSON.stringify({
    input_file_id: inputFileId,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
    ...more,
  });
