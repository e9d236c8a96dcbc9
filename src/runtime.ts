/**
 * The composition root: the one place that knows every part. It starts them in order and closes them in reverse:
 * first HTTP stops, then the engine drains, then webhooks, upstreams and the store close.
 */
import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import type { Access } from "./api/access.ts";
import { DEFAULT_CHUNK_LIMITS } from "./batch/plan.ts";
import { BlobIntents } from "./blobs/blob-intents.ts";
import type { Clock } from "./clock.ts";
import { Closers } from "./closers.ts";
import { fileLimits } from "./config/file-limits.ts";
import { priceRules } from "./config/prices.ts";
import type { Config } from "./config/schema.ts";
import { pollEveryMs } from "./database.ts";
import { CapacitySharing } from "./engine/capacity-sharing.ts";
import { Engine } from "./engine/engine.ts";
import { Fleet } from "./engine/fleet.ts";
import type { IntakeLimits } from "./engine/input-reading.ts";
import { journalLimits } from "./engine/journal.ts";
import { Pricing } from "./engine/pricing.ts";
import { type AppDeps, createApp, createWorkerApp } from "./http/app.ts";
import { CLOSE_GRACE_MS, listen } from "./http/server.ts";
import { fitUpstreams, planDescriptors, readDescriptors } from "./resources/descriptors.ts";
import { MemoryBudget } from "./resources/memory-budget.ts";
import { openStorage } from "./storage.ts";
import type { Store } from "./store/store.ts";
import { AuditLog } from "./telemetry/audit-log.ts";
import type { Log } from "./telemetry/log.ts";
import type { Metrics } from "./telemetry/metrics.ts";
import { NO_TRACING, type Tracing } from "./telemetry/tracing.ts";
import { openUpstreams } from "./upstream/upstreams.ts";
import { upstreamWarnings } from "./upstream/warnings.ts";
import {
  appDeps,
  defaultModelOf,
  newProjects,
  openAccess,
  type Parts,
  rulesOfAll,
} from "./use-cases.ts";
import { mountWeb } from "./web/web.ts";
import { Webhooks } from "./webhooks/webhooks.ts";

/** Says what a process does: it serves the API (`api`), runs batches (`worker`), or does both. */
export const ROLES = ["all", "api", "worker"] as const;
export type Role = (typeof ROLES)[number];

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

export interface Runtime {
  /** The address at which requests are accepted, such as `http://127.0.0.1:8080`. */
  readonly url: string;
  /**
   * Applies settings that need no restart (`config/changes.ts`); requests under way keep the settings they began
   * with.
   */
  reconfigure(config: Config): void;
  /** Asks all processes on the same store to read their configuration again. */
  nudgeToReload(): void;
  /** Runs {@link checkUpstreams} on the upstreams in use. */
  checkUpstreams(): Promise<string[]>;
  /** Stops taking requests, lets work in flight end within the configured grace, and closes everything. */
  close(): Promise<void>;
}

export type StartResult =
  | { readonly ok: true; readonly runtime: Runtime }
  | { readonly ok: false; readonly problem: string };

/** Brings the tables of the data folder up to date and closes it again; returns a problem, or null. */
export async function migrate(config: Config, clock: Clock): Promise<string | null> {
  const closers = new Closers();
  const opened = await openStorage(config, { clock, closers });
  await closers.closeAll();
  return opened.ok ? null : opened.problem;
}

/** Asks upstreams for their models and returns what an operator should know, one sentence each. */
export async function checkUpstreams(options: RuntimeOptions): Promise<string[]> {
  const { config, clock, log, metrics } = options;
  const upstreams = openUpstreams({
    upstreams: config.upstreams,
    maxAnswerBytes: () => config.limits.max_answer_bytes,
    clock,
    log,
    metrics,
    tracing: NO_TRACING,
  });
  const warnings = upstreamWarnings(config, await upstreams.askForModels());
  await upstreams.close();
  return warnings;
}

export const startRuntime = (options: RuntimeOptions): Promise<StartResult> =>
  opening(options, start);

/** Closes what was opened when a start fails. */
async function opening<Result extends { readonly ok: boolean }>(
  options: RuntimeOptions,
  open: (options: RuntimeOptions, closers: Closers) => Promise<Result>,
): Promise<Result> {
  const closers = new Closers();
  const started = await open(options, closers).catch(async (error: unknown) => {
    await closers.closeAll();
    throw error;
  });
  if (!started.ok) await closers.closeAll();
  return started;
}

/** The use cases without HTTP, for a command that does all of the work in its own process. */
export interface Workshop extends Pick<AppDeps, "files" | "batches" | "forecastsFor" | "costsFor"> {
  /** Lets work in flight end within the configured grace, and closes everything. */
  close(): Promise<void>;
}

type OpenedWorkshop =
  | { readonly ok: true; readonly workshop: Workshop }
  | { readonly ok: false; readonly problem: string };

/** Starts the engine without a server. */
export const openWorkshop = (options: RuntimeOptions): Promise<OpenedWorkshop> =>
  opening(options, async (_, closers): Promise<OpenedWorkshop> => {
    const work = await openWork(options, closers);
    if (!work.ok) return work;
    const { parts, engine, deps } = work;
    startWork("all", engine, parts.webhooks);
    const { files, batches, forecastsFor, costsFor } = deps;
    const close = () => closers.closeAll();
    return { ok: true, workshop: { files, batches, forecastsFor, costsFor, close } };
  });

/** Opens everything but HTTP. Nothing is sent yet. */
async function openWork(options: RuntimeOptions, closers: Closers) {
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
  const engine = newEngine(parts, { role, closers });
  const sharing = await startSharing(parts, engine, closers);
  const drainGraceMs = config.engine.drain_grace_seconds * 1000;
  const drain = () => {
    const drained = engine.drain(drainGraceMs);
    sharing.nudge();
    return drained;
  };
  closers.add("engine", drain);
  const access = await openAccess(parts, { role, closers });
  const deps = appDeps(parts, engine, access);
  const reconfigure = (next: Config) => {
    current = next;
    parts.upstreams.reconfigure(fitted(next));
    sharing.nudge();
    parts.webhooks.reconfigure(next.webhooks);
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

async function start(options: RuntimeOptions, closers: Closers): Promise<StartResult> {
  const { config, role = "all", clock } = options;
  const work = await openWork(options, closers);
  if (!work.ok) return work;
  const { parts, engine, access, deps, planFor, drainGraceMs, drain } = work;
  const { store, upstreams, webhooks, configNow } = parts;
  const makeApp = role === "worker" ? createWorkerApp : createApp;
  const app = makeApp(deps);
  const web = role === "worker" ? null : mountWeb(app, { ...parts, callers: access });
  const listening = await listen(app, config.server, { ...planFor(config), clock });
  if (!listening.ok) return listening;
  closers.add("http", () => listening.close(Math.max(drainGraceMs, CLOSE_GRACE_MS)));
  closers.add("open pages", async () => web?.close());
  closers.add("waits for results", async () => deps.results.close());
  // The engine starts only now that the port is ours: a start that fails must not have sent anything.
  startWork(role, engine, webhooks);
  passNudgesOn(store, { ...parts, engine, access }, options);
  const runtime = {
    url: listening.url,
    reconfigure: work.reconfigure,
    nudgeToReload: () => nudgeToReload(parts),
    checkUpstreams: async () => {
      const asked = await upstreams.askForModels();
      return planFor(configNow()).warnings.concat(upstreamWarnings(configNow(), asked));
    },
    close: () => {
      // Nothing new is sent while answers to clients end; the closer reports a failure.
      drain().catch(() => {});
      return closers.closeAll();
    },
  };
  return { ok: true, runtime };
}

interface Opened extends Pick<Parts, "store" | "blobs" | "tracing" | "configNow"> {
  readonly upstreams: Config["upstreams"];
  readonly closers: Closers;
}

function openParts(
  { config, clock, log, metrics }: RuntimeOptions,
  { store, blobs, tracing, configNow, upstreams: targets, closers }: Opened,
): Parts {
  const upstreams = openUpstreams({
    upstreams: targets,
    maxAnswerBytes: () => configNow().limits.max_answer_bytes,
    ...{ clock, log, metrics, tracing },
  });
  closers.add("upstreams", () => upstreams.close());
  const checkEveryMs = pollEveryMs(config);
  const webhooks = new Webhooks({
    ...{ store, config: config.webhooks, clock, log, metrics, checkEveryMs },
  });
  closers.add("webhooks", () => webhooks.drain());
  const audit = new AuditLog({ clock, log, file: () => auditFileOf(configNow()) });
  closers.add("audit", () => audit.close());
  return {
    owner: `${hostname()}/${process.pid}/${randomUUID().slice(0, 8)}`,
    ...{ store, blobs, upstreams, webhooks, clock, log, metrics, tracing, configNow },
    intents: new BlobIntents({ store, blobs, log }),
    audit,
    fleet: new Fleet(clock),
    projects: newProjects({ store, clock, log, configNow }),
    memory: new MemoryBudget(() => configNow().limits.memory_bytes),
  };
}

const auditFileOf = ({ audit }: Config) => (audit === undefined ? undefined : (audit.file ?? null));

function openPlaces(
  { config, clock, metrics, openStorage: open = openStorage }: RuntimeOptions,
  closers: Closers,
) {
  return open(config, {
    ...{ clock, closers },
    onS3Request: metrics.s3Requested.bind(metrics),
    onStatements: metrics.statementsSent.bind(metrics),
  });
}

function startWork(role: Role, engine: Engine, webhooks: Webhooks): void {
  if (role === "api") {
    engine.startWithoutWork();
    return;
  }
  engine.start();
  webhooks.start();
}

const nudgeToReload = ({ store, log }: Parts) =>
  void store.nudgeToReload().catch((err: unknown) => log.warn({ err }, "config.nudge_failed"));

interface Nudged extends Pick<Parts, "projects"> {
  readonly engine: Engine;
  readonly access: Access;
}

/** Wakes the loops that have work because of another process. */
function passNudgesOn(
  store: Store,
  { engine, access, projects }: Nudged,
  { onReloadAsked }: RuntimeOptions,
): void {
  store.onNudge((nudge) => {
    switch (nudge) {
      case "batch_created":
        engine.nudge();
        break;
      case "batch_started":
        engine.nudgeChunks();
        break;
      case "batch_stopping":
        engine.nudgeStopping();
        break;
      case "keys_changed":
        access.nudge();
        projects.nudge();
        break;
      case "reload_asked":
        onReloadAsked?.();
        break;
    }
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
  closers: Closers,
): Promise<CapacitySharing> {
  const limitOf = (target: string) =>
    parts.configNow().upstreams.find(({ name }) => name === target)?.max_concurrency ?? null;
  const sharing = new CapacitySharing({
    ...{ ...parts, limitOf },
    report: () => engine.report(),
    mayKeepHouse: () => !engine.isDraining,
    // No other process takes leases of SQLite over. A locked database must not stop requests that do not need it.
    renewLeasesIfLate: async () => {
      if (parts.configNow().database_url !== undefined) await engine.renewLeasesIfLate();
    },
  });
  closers.add("capacity sharing", () => sharing.close());
  await sharing.start();
  return sharing;
}

/** Ends its renewals after everything that needs them. */
function newEngine(
  parts: Parts,
  { role, closers }: { readonly role: Role; readonly closers: Closers },
): Engine {
  const { blobs, webhooks, projects, configNow } = parts;
  const prices = () => priceRules(configNow().prices);
  const engine = new Engine({
    ...parts,
    isWorker: role !== "api",
    forecastTolerance: configNow().database_url === undefined ? 0 : SHARED_FORECAST_TOLERANCE,
    limits: () => intakeLimits(configNow()),
    defaultModel: () => defaultModelOf(configNow()),
    rulesOf: rulesOfAll(parts),
    deletedProjects: () => projects.deleted,
    journalLimits: journalLimits(blobs.writeHints),
    pricing: new Pricing(prices),
    prices,
    stopGraceMs: configNow().engine.stop_grace_seconds * 1000,
    leaseTtlMs: configNow().engine.lease_seconds * 1000,
    announcementsFor: (batch) => webhooks.announcementsFor(batch),
    onFinal: () => webhooks.nudge(),
    pollEveryMs: pollEveryMs(configNow()),
  });
  closers.add("renewals", () => engine.close());
  return engine;
}

/** Loads the code for spans only when tracing is configured. */
async function openTracing({ config, clock, log }: RuntimeOptions): Promise<Tracing> {
  if (config.tracing === undefined) return NO_TRACING;
  const { openOtlpTracing } = await import("./telemetry/tracing-otlp.ts");
  return openOtlpTracing({ ...config.tracing, clock, log });
}
