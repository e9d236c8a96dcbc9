/**
 * The composition root: it knows every part, and opens and wires storage, upstreams, webhooks, deliveries and the engine,
 * with a server and without one. Nothing is sent before `startWork`.
 */
import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { DEFAULT_CHUNK_LIMITS } from "../batch/plan.ts";
import { BlobIntents } from "../blobs/blob-intents.ts";
import type { Clock } from "../clock.ts";
import type { Closers } from "../closers.ts";
import { environmentSecrets } from "../config/config.ts";
import { fileLimits } from "../config/file-limits.ts";
import { priceRules } from "../config/prices.ts";
import type { Role } from "../config/role.ts";
import type { Config } from "../config/schema.ts";
import { Engine, type EngineOptions } from "../engine/engine.ts";
import { CapacitySharing } from "../engine/fleet/capacity-sharing.ts";
import { Fleet } from "../engine/fleet/fleet.ts";
import type { IntakeLimits } from "../engine/intake/input-reading.ts";
import { journalLimits } from "../engine/journal/journal.ts";
import { Pricing } from "../engine/journal/pricing.ts";
import { Redactor } from "../redactor.ts";
import { fitUpstreams, planDescriptors, readDescriptors } from "../resources/descriptors.ts";
import { MemoryBudget } from "../resources/memory-budget.ts";
import { AuditLog } from "../telemetry/audit-log.ts";
import type { Log } from "../telemetry/log.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import { NO_TRACING, type Tracing } from "../telemetry/tracing.ts";
import { openUpstreams } from "../upstream/upstreams.ts";
import { Webhooks } from "../webhooks/webhooks.ts";
import { describingSettings } from "./common-settings.ts";
import {
  defaultModelOf,
  newClientBuckets,
  newDeliveryRunner,
  newLocations,
  newProjects,
  type Parts,
  rulesOfAll,
} from "./parts.ts";
import { isShared, pollEveryMs } from "./storage/databases.ts";
import { openStorage } from "./storage/storage.ts";
import { appDeps, openAccess } from "./use-cases.ts";

export interface RuntimeOptions {
  readonly config: Config;
  readonly role?: Role;
  /** The callback for a process on the same store that asks for a reload of the configuration. */
  readonly onReloadAsked?: () => void;
  readonly clock: Clock;
  readonly log: Log;
  readonly metrics: Metrics;
  /** The opening of the storage. Tests of several replicas replace it, because each would lock out the others. */
  readonly openStorage?: typeof openStorage;
}

/** Opens everything but HTTP. Nothing is sent yet. */
export async function openWork(options: RuntimeOptions, closers: Closers) {
  const { config, role = "all" } = options;
  const opened = await openPlaces(options, closers);
  if (!opened.ok) return opened;
  const { store, blobs } = opened;
  const { planFor, fitted } = descriptorPlans();
  let current = config;
  const configNow = () => current;
  const tracing = await openTracing(options);
  closers.add("tracing", () => tracing.close());
  const places = { store, blobs, tracing, configNow };
  const parts = openParts(options, { ...places, upstreams: fitted(config), closers });
  closers.add("projects", () => parts.projects.close());
  await parts.projects.start();
  const prices = () => priceRules(configNow().prices);
  const pricing = new Pricing(prices);
  const engine = newEngine(parts, { role, closers, prices, pricing });
  const sharing = await startSharing(parts, engine, { closers, pricing });
  const drainGraceMs = config.engine.drain_grace_seconds * 1000;
  const drain = () => {
    const drained = [engine.drain(drainGraceMs), parts.deliveries.drain(drainGraceMs)];
    sharing.nudge();
    return Promise.all(drained).then(() => {});
  };
  closers.add("engine", drain);
  const access = await openAccess(parts, { role, closers });
  const { maxConnections } = planFor(config);
  const deps = appDeps(parts, engine, { access, maxConnections });
  const reconfigure = (next: Config) => {
    current = next;
    parts.upstreams.reconfigure(fitted(next));
    sharing.nudge();
    parts.webhooks.reconfigure(next.webhooks);
    parts.locations.reconfigure(next.locations);
    parts.clientBuckets.reconfigure(next.deliveries);
    engine.reroute();
  };
  return {
    ok: true,
    parts,
    engine,
    access,
    deps,
    planFor,
    drainGraceMs,
    drain,
    reconfigure,
  } as const;
}

/** Starts sending, as the role allows. */
export function startWork(role: Role, engine: Engine, { webhooks, deliveries }: Parts): void {
  if (role === "api") {
    engine.startWithoutWork();
    return;
  }
  engine.start();
  webhooks.start();
  deliveries.start();
}

interface Opened extends Pick<Parts, "store" | "blobs" | "tracing" | "configNow"> {
  readonly upstreams: Config["upstreams"];
  readonly closers: Closers;
}

function openParts(
  { config, clock, log, metrics }: RuntimeOptions,
  { store, blobs, tracing, configNow, upstreams: targets, closers }: Opened,
): Parts {
  const fleet = new Fleet(clock, { isStoreHere: !isShared(config) });
  const upstreams = openUpstreams({
    upstreams: targets,
    maxAnswerBytes: () => configNow().limits.max_answer_bytes,
    // Windows end by the clock of the store, and the hours of schedules are to be the same at all replicas.
    clock: fleet.storeClock,
    log,
    metrics,
    tracing,
  });
  closers.add("upstreams", () => upstreams.close());
  const checkEveryMs = pollEveryMs(config);
  const webhooks = new Webhooks({
    store,
    config: config.webhooks,
    elsewhere: () => fleet.webhooks,
    // The time since an event counts by the store, and receivers refuse a date that is minutes off.
    clock: fleet.storeClock,
    log,
    metrics,
    checkEveryMs,
  });
  closers.add("webhooks", () => webhooks.drain());
  const audit = new AuditLog({ clock, log, file: () => auditFileOf(configNow()) });
  closers.add("audit", () => audit.close());
  // Commits have this date, and by it what a dead attempt has left in a shared folder is old.
  const locations = newLocations(config, fleet.storeClock);
  const parts = {
    owner: `${hostname()}/${process.pid}/${randomUUID().slice(0, 8)}`,
    store,
    blobs,
    clock,
    log,
    metrics,
    configNow,
    upstreams,
    webhooks,
    tracing,
    intents: new BlobIntents({ store, blobs, log }),
    audit,
    locations,
    clientBuckets: newClientBuckets(config, locations),
    fleet,
    memory: new MemoryBudget(() => configNow().limits.memory_bytes),
  };
  return {
    ...parts,
    deliveries: newDeliveryRunner(parts),
    projects: newProjects({ ...parts, clock: fleet.storeClock }),
  };
}

const auditFileOf = ({ audit }: Config) => (audit === undefined ? undefined : (audit.file ?? null));

function openPlaces(
  { config, clock, log, metrics, openStorage: open = openStorage }: RuntimeOptions,
  closers: Closers,
) {
  return open(config, {
    clock,
    closers,
    onS3Request: metrics.s3Requested.bind(metrics),
    onDamaged: (damage) => log.error({ problem: damage.message }, "database.damaged"),
    onStatements: metrics.statementsSent.bind(metrics),
  });
}

/** Counts the descriptors that are open before anything is connected. */
function descriptorPlans() {
  const descriptors = readDescriptors();
  const planFor = (config: Config) => planDescriptors(descriptors, config);
  const fitted = (config: Config) => fitUpstreams(config.upstreams, planFor(config).maxRequests);
  return { planFor, fitted };
}

const intakeLimits = (config: Config): IntakeLimits => ({
  ...fileLimits(config),
  chunk: DEFAULT_CHUNK_LIMITS,
});

/** The tolerance saves most writes to a database that several processes share. One process keeps its forecasts in memory. */
const SHARED_FORECAST_TOLERANCE = 0.01;

/** Ends after the engine, which has nothing in flight then. */
async function startSharing(
  parts: Parts,
  engine: Engine,
  { closers, pricing }: { readonly closers: Closers; readonly pricing: Pricing },
): Promise<CapacitySharing> {
  const { owner, store, upstreams, fleet, projects, clock, log, metrics, configNow } = parts;
  const limitOf = (target: string) =>
    configNow().upstreams.find(({ name }) => name === target)?.max_concurrency ?? null;
  const sharing = new CapacitySharing({
    owner,
    store,
    upstreams,
    fleet,
    clock,
    log,
    limitOf,
    report: () => {
      // Another project may have the name later, and no other replica is to learn of this one any more.
      upstreams.forgetProjects(projects.deleted);
      pricing.forgetProjects(projects.deleted);
      void metrics.forgetProjects(projects.deleted);
      return engine.view.report();
    },
    mayKeepHouse: () => !engine.isDraining,
    // No other process takes leases of SQLite over. A locked database must not stop requests that do not need it.
    renewLeasesIfLate: async () => {
      if (isShared(configNow())) await engine.renewLeasesIfLate();
    },
  });
  closers.add("capacity sharing", () => sharing.close());
  await sharing.start();
  return sharing;
}

interface EngineSurroundings extends Pick<EngineOptions, "prices" | "pricing"> {
  readonly role: Role;
  readonly closers: Closers;
}

/** Ends its renewals after everything that needs them. */
function newEngine(parts: Parts, { role, closers, prices, pricing }: EngineSurroundings): Engine {
  const { owner, store, blobs, intents, upstreams, fleet, memory } = parts;
  const { webhooks, deliveries, projects, clock, log, metrics, tracing, configNow } = parts;
  const settingsOf = describingSettings(role);
  const engine = new Engine({
    owner,
    store,
    blobs,
    intents,
    upstreams,
    fleet,
    memory,
    clock,
    log,
    metrics,
    tracing,
    isWorker: role !== "api",
    settings: () => settingsOf(configNow()),
    forecastTolerance: isShared(configNow()) ? SHARED_FORECAST_TOLERANCE : 0,
    limits: () => intakeLimits(configNow()),
    maxDuplicateBytes: () => configNow().limits.max_upload_bytes,
    defaultModel: () => defaultModelOf(configNow()),
    rulesOf: rulesOfAll(parts),
    deletedProjects: () => projects.deleted,
    journalLimits: journalLimits(blobs.writeHints),
    pricing,
    prices,
    stopGraceMs: configNow().engine.stop_grace_seconds * 1000,
    leaseTtlMs: configNow().engine.lease_seconds * 1000,
    announcementsFor: (batch) => webhooks.announcementsFor(batch),
    onFinal: () => {
      webhooks.nudge();
      deliveries.nudge();
    },
    pollEveryMs: pollEveryMs(configNow()),
  });
  closers.add("renewals", () => engine.close());
  return engine;
}

/** Loads the code for spans only when tracing is configured. */
async function openTracing({ config, clock, log }: RuntimeOptions): Promise<Tracing> {
  if (config.tracing === undefined) return NO_TRACING;
  const { openOtlpTracing } = await import("../telemetry/tracing-otlp.ts");
  const redactor = new Redactor(environmentSecrets());
  return openOtlpTracing({ ...config.tracing, clock, log, redactor });
}
