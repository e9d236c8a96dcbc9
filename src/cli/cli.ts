/**
 * The command line: names every command, reads its arguments, and resolves to an exit code. What a command does is in a file
 * of its own; what talks to servers is loaded only when it runs. It must never end the process; `main.ts` does.
 */
import { existsSync } from "node:fs";
import { resolve } from "node:path";
import { inspect } from "node:util";
import { Command, CommanderError, Option } from "commander";
import { asking } from "../client/asking.ts";
import { addBatchCommands } from "../client/commands.ts";
import { addCompletion } from "../client/completion.ts";
import { addFileChecks } from "../client/file-checks.ts";
import { addFileCommands } from "../client/file-commands.ts";
import { withJson } from "../client/options.ts";
import { addPipelineCommand } from "../client/pipeline-command.ts";
import { addRun } from "../client/run-command.ts";
import { sleep, systemClock } from "../clock.ts";
import { loadConfig } from "../config/config.ts";
import { OVERRIDES, type Overrides } from "../config/overrides.ts";
import { redactConfig } from "../config/redact-config.ts";
import { ROLES, type Role } from "../config/role.ts";
import type { Config } from "../config/schema.ts";
import { configSecrets } from "../config/secrets.ts";
import { loadTarget, type TargetFlags } from "../config/target.ts";
import { configWarnings } from "../config/warnings.ts";
import { printableLines } from "../printable.ts";
import { Redactor } from "../redactor.ts";
import { type AdministerOptions, administer } from "../runtime/administration.ts";
import { lookAtFolders } from "../runtime/location-folders.ts";
import { checkUpstreams, migrate } from "../runtime/runtime.ts";
import { createLog } from "../telemetry/log.ts";
import { Metrics } from "../telemetry/metrics.ts";
import { sayJson } from "../terminal/lines.ts";
import { complainAbout, complainInLines, fail, OK, sayLines } from "../terminal/output.ts";
import { watchStandardStreams } from "../terminal/standard-streams.ts";
import { version } from "../version.ts";
import { shellPath } from "../words.ts";
import type { AdministrativeAct, ListFlags } from "./administration-output.ts";
import { addKeyCommands } from "./keys.ts";
import { addOperatorManuals, FIRST_STEPS } from "./manuals.ts";
import { migrateTo } from "./migrate-to.ts";
import { addProjectCommands } from "./projects.ts";
import type { RunFlags } from "./run-config.ts";
import { serve } from "./serve.ts";
import { leaveSilentShares } from "./stop.ts";
import { systemFailure } from "./system-failure.ts";

/** The time that a log has at the end of a server to be read: what reads it may have stopped for good. */
const LOG_READ_WITHIN_MS = 2_000;

/** Runs the command of a process. Resolves to its exit code, once it can exit. */
export async function runProcess(argv: readonly string[]): Promise<number> {
  const exitCode = await runCli(argv);
  await leaveSilentShares(systemClock);
  return exitCode;
}

/** Resolves to the exit code, once all output is written. */
export async function runCli(argv: readonly string[]): Promise<number> {
  const streams = watchStandardStreams();
  const isServer = withDefault(argv)[2] === "serve";
  const exitCode = await runCommand(argv).catch((error: unknown) => {
    // The error is a bug in batchd, so its stack matters. Its message may be from elsewhere.
    return fail(inspect(error));
  });
  return isServer
    ? streams.finish(exitCode, sleep(systemClock, LOG_READ_WITHIN_MS))
    : streams.finish(exitCode);
}

async function runCommand(argv: readonly string[]): Promise<number> {
  let exitCode = OK;
  const withConfig = (act: ConfigAct) => async (flags: Overrides) => {
    const { loaded, warnings } = await lookAtFolders(loadConfig(flags), systemClock);
    exitCode = loaded.ok ? await act(loaded.config, warnings) : complainAbout(loaded.problems);
  };
  const program = new Command("batchd")
    .description("A drop-in OpenAI Batch API server for any model.")
    .version(version)
    .configureOutput({
      outputError: (text, write) => write(printableLines(`${text}${fileHint(text)}`)),
    })
    .addHelpText("after", FIRST_STEPS)
    .showHelpAfterError("--help has the arguments, the options and examples.")
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
  withJson(withOptions(program.command("check")), "print it with its warnings, on one line")
    .description("Check the configuration and print it, without secrets.")
    .action(async ({ json, ...flags }: ListFlags) => {
      await withConfig(json ? printCheck : printConfig)(flags);
    });
  withOptions(program.command("migrate"))
    .description("Bring the database up to date, then leave.")
    .action(withConfig(migrateDatabase));
  withTargetOptions(program.command("migrate-to")).action(async (flags: MoveFlags) => {
    exitCode = await moveTo(flags);
  });
  const withDatabase =
    (needs: DatabaseNeeds) => async (flags: Overrides, act: AdministrativeAct) => {
      exitCode = await administerWith(flags, needs, act);
    };
  const administration = {
    withOptions: withDatabaseOptions,
    run: withDatabase({ mayBegin: false, needsFiles: false }),
    begin: withDatabase({ mayBegin: true, needsFiles: false }),
    runOnFiles: withDatabase({ mayBegin: false, needsFiles: true }),
  };
  addKeyCommands(program, administration);
  addProjectCommands(program, administration);
  program.command("openapi").description("Print the OpenAPI document.").action(printOpenApi);
  addHelp(program);
  const finish = async (code: Promise<number>) => {
    exitCode = await code;
  };
  addRun(program, async (file, flags) => {
    const { run } = await import("./run.ts");
    exitCode = await run(file, flags as RunFlags);
  });
  const ask = asking(finish);
  addBatchCommands(program, ask);
  addPipelineCommand(program, ask);
  addFileCommands(program, ask);
  addFileChecks(program, finish);
  await addCompletion(program, argv[2]);
  try {
    await program.parseAsync(withDefault(argv));
  } catch (error) {
    // Commander has already printed the fault, or the help.
    if (error instanceof CommanderError) return error.exitCode;
    const failure = systemFailure(error);
    if (failure === null) throw error;
    return fail(failure);
  }
  return exitCode;
}

/** Adds the manuals, and a `help` that says which command it does not know. Commander's own shows the help of everything. */
function addHelp(program: Command): void {
  addOperatorManuals(program);
  program
    .helpCommand(false)
    .command("help [command...]")
    .description("Show the help of a command.")
    .action((names: readonly string[]) => {
      let shown = program;
      for (const name of names) {
        const command = shown.commands.find((each) => each.name() === name);
        if (command === undefined) program.error(`error: unknown command '${names.join(" ")}'`);
        shown = command;
      }
      shown.help();
    });
}

/** Says how a file is named that an error takes for an option. */
function fileHint(error: string): string {
  const [, name = ""] = /^error: unknown option '(-.*)'\n/s.exec(error) ?? [];
  return existsSync(name) ? `If you mean the file: ${shellPath(name)}\n` : "";
}

/** Puts `serve` in front of its options. Commander would also take a misspelled command for an argument of it. */
function withDefault(argv: readonly string[]): readonly string[] {
  const [node = "", script = "", first, ...rest] = argv;
  const isOption = first?.startsWith("-") && !["-h", "--help", "-V", "--version"].includes(first);
  if (first !== undefined && !isOption) return argv;
  return [node, script, "serve", ...(first === undefined ? [] : [first]), ...rest];
}

type DatabaseNeeds = Omit<AdministerOptions, "clock">;

/** Runs a command of an operator on the database that the configuration names. */
async function administerWith(
  flags: Overrides,
  needs: DatabaseNeeds,
  act: AdministrativeAct,
): Promise<number> {
  const loaded = loadConfig(flags);
  if (!loaded.ok) return complainAbout(loaded.problems);
  const ended = await administer(loaded.config, { clock: systemClock, ...needs }, act);
  return typeof ended === "number" ? ended : fail(ended.problem);
}

const withOptions = (command: Command, overrides = Object.values(OVERRIDES)) =>
  overrides.reduce(
    (each, { flag, text, variable }) => each.option(flag, `${text} (${variable})`),
    command,
  );

/** Adds what a command needs that works on the database alone. */
const withDatabaseOptions = (command: Command) =>
  withOptions(command, [OVERRIDES.config, OVERRIDES.dataDir, OVERRIDES.databaseUrl]);

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

/** Prints the OpenAPI document. The import is here because a server does not need it to start. */
async function printOpenApi(): Promise<void> {
  const { openApiYaml } = await import("../contract/openapi.ts");
  process.stdout.write(openApiYaml());
}

/** Resolves to the exit code. The warnings are of the folders of locations. */
type ConfigAct = (config: Config, warnings: readonly string[]) => Promise<number>;

async function printConfig(config: Config, warnings: readonly string[]): Promise<number> {
  sayLines(printableConfig(config));
  for (const warning of await warningsOf(config, warnings)) complainInLines(`warning: ${warning}`);
  return OK;
}

async function printCheck(config: Config, warnings: readonly string[]): Promise<number> {
  const all = await warningsOf(config, warnings);
  sayJson({ config: JSON.parse(printableConfig(config)), warnings: all });
  return OK;
}

const printableConfig = (config: Config): string =>
  new Redactor(configSecrets(config)).text(redactConfig(config));

async function warningsOf(config: Config, known: readonly string[]): Promise<string[]> {
  const surroundings = { clock: systemClock, log: createLog("silent"), metrics: new Metrics() };
  const found = await checkUpstreams({ config, ...surroundings });
  const server = { role: "all", isOpen: config.auth === undefined } as const;
  return [...configWarnings(config, server), ...known, ...found];
}

async function moveTo({ config, dataDir, ...target }: MoveFlags): Promise<number> {
  const source = {
    ...(config !== undefined && { config }),
    ...(dataDir !== undefined && { dataDir }),
  };
  const [from, to] = [loadConfig(source), loadTarget(target)];
  if (!from.ok) return complainAbout(from.problems);
  if (!to.ok) return complainAbout(to.problems);
  const warn = (line: string) => complainInLines(`warning: ${line}`);
  const problem = await migrateTo(from.config, to.config, {
    clock: systemClock,
    say: sayLines,
    warn,
  }).catch((error: unknown) => {
    const failure = systemFailure(error);
    if (failure === null) throw error;
    return `${failure}; run the same command again to go on`;
  });
  return problem === null ? OK : fail(problem);
}

async function migrateDatabase(config: Config): Promise<number> {
  const problem = await migrate(config, systemClock);
  if (problem !== null) return fail(problem);
  const { database_url: url, data_dir: dir } = config;
  sayLines(
    `the database ${url === undefined ? `in ${resolve(dir)}` : "on PostgreSQL"} is up to date`,
  );
  return OK;
}
