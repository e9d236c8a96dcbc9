/**
 * The command `batchd serve`: starts the server, follows the configuration while it runs, and drains at the first signal.
 * The address may only be printed once requests are accepted, because scripts wait for that line.
 */
import { resolve } from "node:path";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { systemClock } from "../clock.ts";
import { configFile, environmentSecrets, loadConfig, loadConfigAgain } from "../config/config.ts";
import { ConfigWatcher } from "../config/config-watcher.ts";
import type { Overrides } from "../config/overrides.ts";
import { reloading } from "../config/reload.ts";
import type { Role } from "../config/role.ts";
import type { Config } from "../config/schema.ts";
import { configSecrets } from "../config/secrets.ts";
import { configWarnings } from "../config/warnings.ts";
import { Redactor } from "../redactor.ts";
import { lookAtFolders } from "../runtime/location-folders.ts";
import { type Runtime, startRuntime } from "../runtime/runtime.ts";
import { createRedactedLog, type Log } from "../telemetry/log.ts";
import { Metrics } from "../telemetry/metrics.ts";
import { complainAbout, complainInLines, FAILED, fail, sayLines } from "../terminal/output.ts";
import { neverWaitForTerminals } from "../terminal/standard-streams.ts";
import { version } from "../version.ts";
import { nextSignal, startUntil, stop } from "./stop.ts";

/** Serves until the first signal; resolves to the exit code. */
export async function serve(flags: Overrides, role: Role): Promise<number> {
  neverWaitForTerminals();
  const watch = await ConfigWatcher.from(configFile(flags));
  let nudgeOthers = () => {};
  process.on("SIGHUP", () => {
    watch.ask();
    nudgeOthers();
  });
  const { loaded, warnings } = await lookAtFolders(loadConfig(flags), systemClock);
  if (!loaded.ok) return complainAbout(loaded.problems);
  const { config } = loaded;
  if (role !== "all" && config.database_url === undefined) return refuseRole(role);
  const redactor = new Redactor([...configSecrets(config), ...environmentSecrets()]);
  const redact = (line: string) => redactor.text(line);
  const shape = { redact, isForPeople: process.stderr.isTTY, clock: systemClock };
  const log = createRedactedLog(config.log_level, shape);
  const firstSignal = nextSignal();
  const metrics = new Metrics();
  metrics.watchProcess();
  const deps = { clock: systemClock, log };
  const onReloadAsked = () => watch.ask();
  const starting = startRuntime({ ...deps, config, role, metrics, onReloadAsked });
  const started = await startUntil(firstSignal, starting, deps);
  if (started === null) return FAILED;
  if (!started.ok) return fail(redact(started.problem));
  const { runtime } = started;
  nudgeOthers = () => runtime.nudgeToReload();
  const warningsOf = (loaded: Config) => configWarnings(loaded, { role, isOpen: runtime.isOpen });
  for (const warning of [...warningsOf(config), ...warnings]) {
    complainInLines(`warning: ${warning}`);
  }
  logStart(log, { url: runtime.url, config, role });
  collectStartupGarbage();
  sayLines(`batchd listening on ${runtime.url}`);
  if (process.stdout.isTTY) greet(runtime.url, config, role);
  // The start does not wait for the answers: an upstream that is down must not delay it.
  void warnOfUpstreams(runtime, log);
  const drain = new AbortController();
  const apply = (next: Config) => {
    redactor.add(configSecrets(next));
    log.level = next.log_level;
    runtime.reconfigure(next);
    void warnOfUpstreams(runtime, log);
  };
  const take = reloading({ config, warningsOf, apply, log, metrics });
  const reload = async () => {
    const next = await lookAtFolders(loadConfigAgain(flags), systemClock);
    take(next.loaded, next.warnings);
  };
  const watched = watch.run(reload, { ...deps, drain: drain.signal });
  const signal = await firstSignal;
  drain.abort();
  await watched;
  log.info({ signal, grace_seconds: config.engine.drain_grace_seconds }, "server.stopping");
  return stop(runtime, deps);
}

/** Logs what runs. */
function logStart(
  log: Log,
  { url, config, role }: { readonly url: string; readonly config: Config; readonly role: Role },
): void {
  log.info(
    {
      version,
      role,
      url,
      data_dir: resolve(config.data_dir),
      storage: storageText(config),
      upstreams: config.upstreams.map(
        ({ name, base_url }) => `${name} ${new URL(base_url).origin}`,
      ),
      keys: config.auth?.keys.length ?? "none",
    },
    "server.started",
  );
}

async function warnOfUpstreams(runtime: Runtime, log: Log): Promise<void> {
  const warnings = await runtime.checkUpstreams();
  for (const warning of warnings) log.warn({ warning }, "config.warning");
  if (process.stdout.isTTY) sayLines(upstreamState(warnings));
}

const refuseRole = (role: Role): number =>
  fail(
    `--role ${role} needs a database that several processes can share: set database_url to a PostgreSQL, or let one process do everything on SQLite (--role all)`,
  );

/** Says in a terminal what runs, for the person who has started it. */
function greet(url: string, config: Config, role: Role): void {
  const { data_dir: dir, database_url: database, storage, upstreams } = config;
  const files = storage.type === "s3" ? storageText(config) : resolve(dir);
  const named = upstreams.map(({ name, base_url }) => `${name} (${new URL(base_url).origin})`);
  if (role !== "worker") sayLines(`  page       ${url}/`);
  sayLines(`  data       ${files}${database === undefined ? "" : ", facts in PostgreSQL"}`);
  sayLines(
    `  upstreams  ${named.join(", ") || "none: --upstream http://localhost:8000/v1 names one"}`,
  );
  sayLines("  stop with Ctrl-C");
}

/** Each warning is a line of the log. */
const upstreamState = (warnings: readonly string[]): string =>
  warnings.length === 0 ? "  the upstreams answer" : "  some upstreams do not answer: see above";

const storageText = ({ storage: { type, bucket, prefix } }: Config) =>
  type === "s3" ? `s3://${bucket}/${prefix}` : type;

/**
 * Collects the 20 MB of garbage that the start leaves, which V8 would keep until it is busy. A collection blocks the
 * process for some 100 ms. No client waits yet, because the address is not printed before.
 */
function collectStartupGarbage(): void {
  // A script that runs everywhere cannot have a flag for Node.js in its first line.
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc") as NodeJS.GCFunction;
  collect({ type: "major", execution: "sync", flavor: "last-resort" });
}
