/** The command line: parses arguments and prints for people. It must never end the process; `main.ts` does. */
import { once } from "node:events";
import { resolve } from "node:path";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { Command, CommanderError, Option } from "commander";
import { administer } from "./administration.ts";
import type { AdministrativeAct } from "./administration-output.ts";
import { addKeyCommands } from "./cli-keys.ts";
import { addProjectCommands } from "./cli-projects.ts";
import { addBatchCommands } from "./client/commands.ts";
import { addCompletion } from "./client/completion.ts";
import { addFileChecks } from "./client/file-checks.ts";
import { addFileCommands } from "./client/file-commands.ts";
import { addRun } from "./client/run-command.ts";
import { systemClock } from "./clock.ts";
import { configFile, loadConfig } from "./config/config.ts";
import { ConfigWatcher } from "./config/config-watcher.ts";
import { OVERRIDES, type Overrides } from "./config/overrides.ts";
import { redactConfig } from "./config/redact-config.ts";
import { reloading } from "./config/reload.ts";
import type { Config } from "./config/schema.ts";
import { configSecrets } from "./config/secrets.ts";
import { loadTarget, type TargetFlags } from "./config/target.ts";
import { configWarnings } from "./config/warnings.ts";
import { migrateTo } from "./migrate-to.ts";
import { Redactor } from "./redactor.ts";
import type { RunFlags } from "./run.ts";
import {
  checkUpstreams,
  migrate,
  ROLES,
  type Role,
  type Runtime,
  startRuntime,
} from "./runtime.ts";
import { createLog, createRedactedLog, type Log } from "./telemetry/log.ts";
import { Metrics } from "./telemetry/metrics.ts";
import { version } from "./version.ts";

const OK = 0;
const FAILED = 1;
const INTERRUPTED = 130;

const say = (line: string) => process.stdout.write(`${line}\n`);
const complain = (line: string) => process.stderr.write(`batchd: ${line}\n`);

/** Resolves to the exit code. */
export async function runCli(argv: readonly string[]): Promise<number> {
  let exitCode = OK;
  const withConfig = (act: (config: Config) => Promise<number>) => async (flags: Overrides) => {
    const loaded = loadConfig(flags);
    exitCode = loaded.ok ? await act(loaded.config) : complainAbout(loaded.problems);
  };
  const program = new Command("batchd")
    .description("A drop-in OpenAI Batch API server for any model.")
    .version(version)
    .exitOverride();
  withOptions(program.command("serve"))
    .description("Serve the API and run batches.")
    .addOption(
      new Option("--role <role>", "what this process does: serve the API, run batches, or both")
        .choices(ROLES)
        .default("all"),
    )
    .action(async ({ role, ...flags }: Overrides & { readonly role: Role }) => {
      exitCode = await serve(flags, role);
    });
  withOptions(program.command("check"))
    .description("Check the configuration and print it, without secrets.")
    .action(withConfig(printConfig));
  withOptions(program.command("migrate"))
    .description("Bring the database up to date, then leave.")
    .action(withConfig(migrateDatabase));
  withTargetOptions(program.command("migrate-to")).action(async (flags: MoveFlags) => {
    exitCode = await moveTo(flags);
  });
  const run = async (flags: Overrides, act: AdministrativeAct) => {
    exitCode = await withDatabase(flags, act);
  };
  addKeyCommands(program, { withOptions, run });
  addProjectCommands(program, { withOptions, run });
  program.command("openapi").description("Print the OpenAPI document.").action(printOpenApi);
  const finish = async (code: Promise<number>) => {
    exitCode = await code;
  };
  addRun(program, async (file, flags) => {
    const { run } = await import("./run.ts");
    exitCode = await run(file, flags as RunFlags);
  });
  addBatchCommands(program, finish);
  addFileCommands(program, finish);
  addFileChecks(program, finish);
  await addCompletion(program, argv[2]);
  try {
    await program.parseAsync(withDefault(argv));
  } catch (error) {
    // Commander has already printed the fault, or the help.
    if (error instanceof CommanderError) return error.exitCode;
    const failure = systemFailure(error);
    // The error is a bug in batchd, so its stack matters.
    if (failure === null) throw error;
    complain(failure);
    return FAILED;
  }
  return exitCode;
}

/** Puts `serve` in front of its options. Commander would also take a misspelled command for an argument of it. */
function withDefault(argv: readonly string[]): readonly string[] {
  const [node = "", script = "", first, ...rest] = argv;
  const isOption = first?.startsWith("-") && !["-h", "--help", "-V", "--version"].includes(first);
  if (first !== undefined && !isOption) return argv;
  return [node, script, "serve", ...(first === undefined ? [] : [first]), ...rest];
}

/** Runs a command of an operator on the database that the configuration names. */
async function withDatabase(flags: Overrides, act: AdministrativeAct): Promise<number> {
  const loaded = loadConfig(flags);
  if (!loaded.ok) return complainAbout(loaded.problems);
  const ended = await administer(loaded.config, systemClock, act);
  if (typeof ended === "number") return ended;
  complain(ended.problem);
  return FAILED;
}

/** Returns a sentence for an error of the system or a library; null for any other error. */
function systemFailure(error: unknown): string | null {
  if (!(error instanceof Error)) return null;
  const { code, message, cause } = error as NodeJS.ErrnoException;
  return typeof code === "string" ? message : systemFailure(cause);
}

const withOptions = (command: Command, overrides = Object.values(OVERRIDES)) =>
  overrides.reduce(
    (each, { flag, text, variable }) => each.option(flag, `${text} (${variable})`),
    command,
  );

/** The flags of a move. The first two describe the source, as they do for every command. */
type MoveFlags = Pick<Overrides, "config" | "dataDir"> & TargetFlags;

const withTargetOptions = (command: Command) =>
  withOptions(command, [OVERRIDES.config, OVERRIDES.dataDir])
    .summary("Copy everything to another database and another place for files.")
    .description(
      "Copy everything to another database and another place for files, and compare both sides. " +
        "No server may run on either. Killed and run again, the command goes on. " +
        "The configuration, BATCHD_DATABASE_URL included, names the source; the flags below name the target.",
    )
    .option("--database-url <url>", "PostgreSQL of the target; SQLite in its folder if left out")
    .option("--storage <place>", "folder or s3://bucket/prefix/?region=… for the target's files")
    .option("--to-data-dir <dir>", "data folder of the target; the folder of --storage if left out")
    .option("--to-config <file>", "YAML configuration of the target, in place of these flags");

function refuseRole(role: Role): number {
  complain(
    `--role ${role} needs a database that several processes can share: set database_url to a PostgreSQL, or let one process do everything on SQLite (--role all)`,
  );
  return FAILED;
}

function complainAbout(problems: readonly string[]): number {
  const [first] = problems;
  if (problems.length === 1) {
    complain(`the configuration has a problem: ${first}`);
  } else {
    complain(`the configuration has ${problems.length} problems:`);
    for (const problem of problems) process.stderr.write(`  - ${problem}\n`);
  }
  return FAILED;
}

async function serve(flags: Overrides, role: Role): Promise<number> {
  const watch = await ConfigWatcher.from(configFile(flags));
  const loaded = loadConfig(flags);
  if (!loaded.ok) return complainAbout(loaded.problems);
  const { config } = loaded;
  if (role !== "all" && config.database_url === undefined) return refuseRole(role);
  const redactor = new Redactor(configSecrets(config));
  const redact = (line: string) => redactor.text(line);
  const log = createRedactedLog(config.log_level, { redact, isForPeople: process.stderr.isTTY });
  const firstSignal = nextSignal();
  let nudgeOthers = () => {};
  process.on("SIGHUP", () => {
    watch.ask();
    nudgeOthers();
  });
  const metrics = new Metrics();
  metrics.watchProcess();
  const started = await startRuntime({
    ...{ config, role, clock: systemClock, log, metrics },
    onReloadAsked: () => watch.ask(),
  });
  if (!started.ok) {
    complain(started.problem);
    return FAILED;
  }
  const { runtime } = started;
  nudgeOthers = () => runtime.nudgeToReload();
  for (const warning of configWarnings(config, role)) complain(`warning: ${warning}`);
  log.info(
    {
      version,
      role,
      url: runtime.url,
      data_dir: resolve(config.data_dir),
      storage: storageText(config),
      upstreams: config.upstreams.map(
        ({ name, base_url }) => `${name} ${new URL(base_url).origin}`,
      ),
      keys: config.auth?.keys.length ?? "none",
    },
    "server.started",
  );
  collectStartupGarbage();
  say(`batchd listening on ${runtime.url}`);
  if (process.stdout.isTTY) greet(runtime.url, config, role);
  const drain = new AbortController();
  const load = () => loadConfig(flags);
  // The start does not wait for the answers: an upstream that is down must not delay it.
  const warnOfUpstreams = async () => {
    const warnings = await runtime.checkUpstreams();
    for (const warning of warnings) log.warn({ warning }, "config.warning");
    if (process.stdout.isTTY) say(upstreamState(warnings));
  };
  void warnOfUpstreams();
  const apply = (next: Config) => {
    redactor.add(configSecrets(next));
    log.level = next.log_level;
    runtime.reconfigure(next);
    void warnOfUpstreams();
  };
  const reload = reloading({ config, load, apply, log, metrics });
  const watched = watch.run(reload, { clock: systemClock, log, drain: drain.signal });
  const signal = await firstSignal;
  drain.abort();
  await watched;
  log.info({ signal, grace_seconds: config.engine.drain_grace_seconds }, "server.stopping");
  return stop(runtime, log);
}

/** Says in a terminal what runs, for the person who has started it. */
function greet(url: string, config: Config, role: Role): void {
  const { data_dir: dir, database_url: database, storage, upstreams } = config;
  const files = storage.type === "s3" ? storageText(config) : resolve(dir);
  const named = upstreams.map(({ name, base_url }) => `${name} (${new URL(base_url).origin})`);
  if (role !== "worker") say(`  page       ${url}/`);
  say(`  data       ${files}${database === undefined ? "" : ", facts in PostgreSQL"}`);
  say(`  upstreams  ${named.join(", ") || "none: --upstream http://localhost:8000/v1 names one"}`);
  say("  stop with Ctrl-C");
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

/** Closes the runtime, or ends at once at the second signal. */
function stop(runtime: Runtime, log: Log): Promise<number> {
  const secondSignal = nextSignal().then(() => INTERRUPTED);
  const closed = runtime.close().then(() => {
    log.info("server.stopped");
    return OK;
  });
  return Promise.race([closed, secondSignal]);
}

/** Resolves to the next signal. The second one, during the grace period, ends the process at once. */
function nextSignal(): Promise<string> {
  const signals = ["SIGTERM", "SIGINT"] as const;
  return Promise.race(signals.map((signal) => once(process, signal).then(() => signal)));
}

/** Prints the OpenAPI document. The import is here because a server does not need it to start. */
async function printOpenApi(): Promise<void> {
  const { openApiYaml } = await import("./contract/openapi.ts");
  process.stdout.write(openApiYaml());
}

async function printConfig(config: Config): Promise<number> {
  say(new Redactor(configSecrets(config)).text(redactConfig(config)));
  const surroundings = { clock: systemClock, log: createLog("silent"), metrics: new Metrics() };
  const found = await checkUpstreams({ config, ...surroundings });
  for (const warning of [...configWarnings(config), ...found]) complain(`warning: ${warning}`);
  return OK;
}

async function moveTo({ config, dataDir, ...target }: MoveFlags): Promise<number> {
  const source = {
    ...(config !== undefined && { config }),
    ...(dataDir !== undefined && { dataDir }),
  };
  const [from, to] = [loadConfig(source), loadTarget(target)];
  if (!from.ok) return complainAbout(from.problems);
  if (!to.ok) return complainAbout(to.problems);
  const warn = (line: string) => complain(`warning: ${line}`);
  const problem = await migrateTo(from.config, to.config, { clock: systemClock, say, warn }).catch(
    (error: unknown) => {
      const failure = systemFailure(error);
      if (failure === null) throw error;
      return `${failure}; run the same command again to go on`;
    },
  );
  if (problem === null) return OK;
  complain(problem);
  return FAILED;
}

async function migrateDatabase(config: Config): Promise<number> {
  const problem = await migrate(config, systemClock);
  if (problem !== null) {
    complain(problem);
    return FAILED;
  }
  const { database_url: url, data_dir: dir } = config;
  say(`the database ${url === undefined ? `in ${resolve(dir)}` : "on PostgreSQL"} is up to date`);
  return OK;
}
