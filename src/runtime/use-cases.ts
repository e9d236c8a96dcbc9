/**
 * Composes the use cases of `api/`, and what HTTP needs beside them, from the parts that `work.ts` has opened. It is the only
 * place that says which part each of them gets, and it must decide nothing for a request.
 */

import { Access } from "../api/access.ts";
import { BatchLines } from "../api/batch-lines.ts";
import { courseFinder } from "../api/batch-progress.ts";
import { Batches } from "../api/batches.ts";
import { BytesUnderWay } from "../api/bytes-under-way.ts";
import { CopiedInputs } from "../api/copied-inputs.ts";
import { Deliveries } from "../api/deliveries.ts";
import { type DeliveryRequestDeps, newDeliveries } from "../api/delivery-requests.ts";
import { DerivedBatches } from "../api/derived-batches.ts";
import { fileSizes } from "../api/file-sizes.ts";
import { Files } from "../api/files.ts";
import { Idempotency } from "../api/idempotency.ts";
import { Interactive } from "../api/interactive.ts";
import { InteractiveSlots } from "../api/interactive-slots.ts";
import { Keys } from "../api/keys.ts";
import { Models } from "../api/models.ts";
import { Results } from "../api/results.ts";
import { Runs } from "../api/runs.ts";
import { searchLimit } from "../api/searches.ts";
import { Tables } from "../api/tables.ts";
import { Uploads } from "../api/uploads.ts";
import { reportUsage } from "../api/usage-report.ts";
import type { Closers } from "../closers.ts";
import { isLoopback } from "../config/loopback.ts";
import { priceRules } from "../config/prices.ts";
import type { Config, KeyConfig } from "../config/schema.ts";
import type { Engine } from "../engine/engine.ts";
import type { AppDeps } from "../http/app.ts";
import { MEMORY_PURPOSES } from "../resources/memory-budget.ts";
import { costsWith, defaultModelOf, type Parts, rulesOfAll } from "./parts.ts";

const NO_KEYS: readonly KeyConfig[] = [];

/** A worker serves no route that asks for a key. */
export async function openAccess(
  parts: Parts,
  { role, closers }: { readonly role: string; readonly closers: Closers },
): Promise<Access> {
  const { store, clock, log, configNow } = parts;
  const configured = () => configNow().auth?.keys ?? NO_KEYS;
  const access = new Access({ store, clock, log, configured });
  if (role === "worker") return access;
  closers.add("access", () => access.close());
  await access.start();
  return access;
}

function newBatches(parts: Parts, engine: Engine): Batches {
  const { store, blobs, fleet, log, metrics, tracing, configNow, deliveries } = parts;
  return new Batches({
    store,
    blobs,
    clock: fleet.storeClock,
    log,
    metrics,
    tracing,
    rulesOf: rulesOfAll(parts),
    newDeliveries: (project, requests) => newDeliveries(project, requests, deliveryDeps(parts)),
    prices: () => priceRules(configNow().prices),
    completionWindows: () => configNow().limits.completion_windows,
    nudge: () => engine.nudge(),
    nudgeStopping: () => engine.nudgeStopping(),
    nudgeDeliveries: () => {
      deliveries.nudge();
      deliveries.nudgeHeld();
    },
    pauseRuns: () => engine.pauseRuns(),
    nudgeChunks: () => engine.nudgeChunks(),
  });
}

const deliveryDeps = ({ locations, clientBuckets, fleet }: Parts): DeliveryRequestDeps => ({
  mayWriteTo: (project, location) => locations.find(project, location, "write") !== null,
  clientBuckets,
  clock: fleet.storeClock,
});

function newDeliveryCases(parts: Parts, batches: Batches): Deliveries {
  const { store, log, deliveries } = parts;
  return new Deliveries({
    ...deliveryDeps(parts),
    store,
    log,
    findBatch: (asked) => batches.find(asked),
    nudge: () => deliveries.nudge(),
    nudgeHeld: () => deliveries.nudgeHeld(),
  });
}

const reachOf = ({ server }: Config): AppDeps["reach"] => ({
  isLoopback: isLoopback(server.host),
  allowedHosts: server.allowed_hosts,
});

const newResults = (batches: Batches, { clock }: Parts, engine: Engine): Results =>
  new Results({
    clock,
    batches,
    passedLines: (batch, query) => engine.passedLines(batch, query),
  });

function newInteractive(parts: Parts): Interactive {
  const { store, upstreams, fleet, clock, log, tracing, configNow } = parts;
  const rulesOf = rulesOfAll(parts);
  const slots = new InteractiveSlots({ store, clock, log, rulesOf });
  return new Interactive({
    upstreams,
    clock: fleet.storeClock,
    tracing,
    rulesOf,
    slots,
    defaultModel: () => defaultModelOf(configNow()),
  });
}

/** The use cases, and what HTTP needs beside them. */
export function appDeps(
  parts: Parts,
  engine: Engine,
  { access, maxConnections }: { readonly access: Access; readonly maxConnections: number },
): AppDeps {
  const { store, blobs, intents, upstreams, fleet, memory, audit, projects } = parts;
  const { clock, log, metrics, tracing, configNow } = parts;
  const batches = newBatches(parts, engine);
  const results = newResults(batches, parts, engine);
  const limits = () => configNow().limits;
  const sizes = fileSizes(limits);
  const nudge = () => engine.nudgeSweep();
  const rulesOf = rulesOfAll(parts);
  const costsFor = costsWith(parts);
  const inStore = { store, blobs, intents, memory, clock: fleet.storeClock, log };
  const bytesUnderWay = new BytesUnderWay({ store, rulesOf });
  const storing = { ...inStore, rulesOf, bytesUnderWay, ...sizes, nudge };
  const files = new Files({ ...storing, tracing, projects });
  return {
    maxConnections,
    files,
    tables: new Tables({ files, clock }),
    copiedInputs: new CopiedInputs({
      files,
      clock,
      locations: parts.locations,
      readers: results.readers,
      maxFileBytes: sizes.maxFileBytes,
    }),
    runs: new Runs({ store, batches, costsFor }),
    uploads: new Uploads({ ...storing, files }),
    batches,
    results,
    findCourse: courseFinder({ batches, store, nowMs: () => fleet.nowMs }),
    batchLines: new BatchLines({
      batches,
      readers: results.readers,
      readLinePage: (...asked) => engine.readLinePage(...asked),
      passedLines: (batch, query) => engine.passedLines(batch, query),
    }),
    derivedBatches: new DerivedBatches({ store, batches }),
    deliveries: newDeliveryCases(parts, batches),
    retriesOf: (ids) => store.listRetries(ids),
    models: new Models(upstreams, rulesOf),
    idempotency: new Idempotency({ store, clock, log }),
    interactive: newInteractive(parts),
    maxLineBytes: () => limits().max_line_bytes,
    forecastsFor: (batches) => engine.view.forecastsFor(batches),
    audit,
    rulesOf,
    requestCounts: store,
    costsFor,
    reportUsage: (request) => reportUsage(store, request),
    searches: searchLimit(),
    callers: access,
    listReplicas: () => engine.view.replicas(),
    reach: reachOf(configNow()),
    projects,
    keys: new Keys({ store, clock: fleet.storeClock, log, onChanged: access.apply }),
    assertReady: () => assertReady(engine, parts),
    memory,
    metrics,
    clock: fleet.storeClock,
    log,
    takeSnapshot: snapshotsOf(parts),
  };
}

/** Returns the way to what the metrics are scraped from. */
const snapshotsOf =
  ({ memory, upstreams, fleet, store }: Parts): AppDeps["takeSnapshot"] =>
  async () => ({
    heldBytes: Object.fromEntries(
      MEMORY_PURPOSES.map((purpose) => [purpose, memory.heldBytes(purpose)]),
    ),
    targets: upstreams.listTargets(),
    openWork: fleet.isHousekeeper ? await store.countOpenWork().catch(() => null) : "elsewhere",
    nowMs: fleet.nowMs,
  });

async function assertReady(engine: Engine, { store, blobs }: Parts): Promise<void> {
  if (!engine.canKeepAnswers) throw new Error("answers cannot be written (journal.write_failed)");
  // Both are waited for, so that no more looks than one are under way.
  const checks = await Promise.allSettled([store.ping(), blobs.ping()]);
  for (const check of checks) if (check.status === "rejected") throw check.reason;
}
