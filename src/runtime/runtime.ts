/**
 * Starts a server, or the work alone. `work.ts` opens the parts; this file listens, and passes nudges on. Everything closes
 * in reverse: first HTTP stops, then the engine drains, then webhooks, upstreams and the store close.
 */
import type { Access } from "../api/access.ts";
import type { Clock } from "../clock.ts";
import { Closers } from "../closers.ts";
import type { Config } from "../config/schema.ts";
import type { Engine } from "../engine/engine.ts";
import { problemOfAddress } from "../http/address.ts";
import { type AppDeps, createApp, createWorkerApp } from "../http/app.ts";
import { CLOSE_GRACE_MS } from "../http/closing.ts";
import { listen } from "../http/server.ts";
import type { Store } from "../store/store.ts";
import { NO_TRACING } from "../telemetry/tracing.ts";
import { openUpstreams } from "../upstream/upstreams.ts";
import { upstreamWarnings } from "../upstream/warnings.ts";
import { mountWeb } from "../web/web.ts";
import type { Parts } from "./parts.ts";
import { openStorage } from "./storage/storage.ts";
import { openWork, type RuntimeOptions, startWork } from "./work.ts";

export interface Runtime {
  /** The address at which requests are accepted, such as `http://127.0.0.1:8080`. */
  readonly url: string;
  /** Whether it has an API that asks for no key. */
  readonly isOpen: boolean;
  /**
   * Applies settings that need no restart (`config/changes.ts`); requests under way keep the settings they began
   * with.
   */
  reconfigure(config: Config): void;
  /** Asks all processes on the same store to read their configuration again. */
  nudgeToReload(): void;
  /** Runs {@link checkUpstreams} on the upstreams in use. */
  checkUpstreams(): Promise<string[]>;
  /** How long requests in flight may go on once it closes. */
  readonly closeGraceMs: number;
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
    startWork("all", engine, parts);
    const { files, batches, forecastsFor, costsFor } = deps;
    const close = () => closers.closeAll();
    return { ok: true, workshop: { files, batches, forecastsFor, costsFor, close } };
  });

async function start(options: RuntimeOptions, closers: Closers): Promise<StartResult> {
  const { config, role = "all", clock } = options;
  // A start that fails must not leave a new data folder behind.
  const problem = await problemOfAddress(config.server);
  if (problem !== null) return { ok: false, problem };
  const work = await openWork(options, closers);
  if (!work.ok) return work;
  const { parts, engine, access, deps, planFor, drainGraceMs, drain } = work;
  const { store, upstreams, projects, deliveries, fleet, audit, log, configNow } = parts;
  const makeApp = role === "worker" ? createWorkerApp : createApp;
  const app = makeApp(deps);
  const web =
    role === "worker" ? null : mountWeb(app, { store, audit, clock, log, callers: access });
  const listening = await listen(app, config.server, {
    maxConnections: deps.maxConnections,
    clock,
  });
  if (!listening.ok) return listening;
  const closeGraceMs = Math.max(drainGraceMs, CLOSE_GRACE_MS);
  closers.add("http", () => listening.close(closeGraceMs));
  closers.add("open pages", async () => web?.close());
  closers.add("waits for results", async () => deps.results.close());
  // The engine starts only now that the port is ours: a start that fails must not have sent anything.
  startWork(role, engine, parts);
  passNudgesOn(store, { engine, access, projects, deliveries, fleet }, options);
  const runtime = {
    url: listening.url,
    get isOpen() {
      return role !== "worker" && access.anyone !== null;
    },
    reconfigure: work.reconfigure,
    nudgeToReload: () => nudgeToReload(parts),
    checkUpstreams: async () => {
      const asked = await upstreams.askForModels();
      return planFor(configNow()).warnings.concat(upstreamWarnings(configNow(), asked));
    },
    closeGraceMs,
    close: () => {
      // Nothing new is sent while answers to clients end; the closer reports a failure.
      drain().catch(() => {});
      return closers.closeAll();
    },
  };
  return { ok: true, runtime };
}

/** A nudge comes at once, if it comes at all. The renewals of the replicas bring it in any case. */
function nudgeToReload({ store, fleet, log }: Parts): void {
  fleet.askToReload();
  void fleet.refresh();
  store.nudgeToReload().catch((err: unknown) => log.warn({ err }, "config.nudge_failed"));
}

interface Nudged extends Pick<Parts, "projects" | "deliveries" | "fleet"> {
  readonly engine: Engine;
  readonly access: Access;
}

/** Wakes the loops that have work because of another process. */
function passNudgesOn(
  store: Store,
  { engine, access, projects, deliveries, fleet }: Nudged,
  { onReloadAsked }: RuntimeOptions,
): void {
  fleet.onReload(() => onReloadAsked?.());
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
      case "delivery_due":
        deliveries.nudge();
        break;
      case "delivery_cancelled":
        deliveries.nudgeHeld();
        break;
      case "keys_changed":
        access.nudge();
        projects.nudge();
        break;
      case "reload_asked":
        fleet.nudgedToReload();
        onReloadAsked?.();
        break;
    }
  });
}
