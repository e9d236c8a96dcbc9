/** The commands `batchd projects …`. They work on the database, as `batchd keys …` does. */
import type { Command } from "commander";
import { withJson } from "../client/options.ts";
import { sleep } from "../clock.ts";
import type { Overrides } from "../config/overrides.ts";
import { describeIssue } from "../config/problems.ts";
import { ProjectEntry } from "../config/projects.ts";
import { PutProject } from "../contract/project.ts";
import { presentProject } from "../http/present.ts";
import type { Administration } from "../runtime/administration.ts";
import type { StoredProject } from "../store/projects.ts";
import { complainInLines, FAILED, sayLines } from "../terminal/output.ts";
import {
  type Commands,
  dateOf,
  everyOne,
  type ListFlags,
  reporting,
  sayEach,
  tellOfNew,
} from "./administration-output.ts";

/** The pause between two looks at what a server still has to remove. */
const LOOK_EVERY_MS = 500;

interface CreateFlags extends Overrides {
  readonly weight?: string;
  readonly models?: string;
  readonly quota?: readonly string[];
  readonly filesExpireAfter?: string;
  readonly resultsExpireAfter?: string;
}

export function addProjectCommands(
  program: Command,
  { withOptions, run, begin, runOnFiles }: Commands,
): void {
  const projects = program
    .command("projects")
    .description("Make, list and delete projects at run time.");
  withJson(withOptions(projects.command("list")), "print each project as a line of JSON")
    .description("List the projects that were made. Those of the configuration are not among them.")
    .action((flags: ListFlags) => run(flags, (opened) => list(flags, opened)));
  withOptions(projects.command("create"))
    .argument("<name>", "the project, as keys name it")
    .description("Make a project, or give it other rules. What is left out has no limit.")
    .option("--weight <number>", "its share where several projects wait")
    .option("--models <names>", "the models that it may ask for, such as llama-3*,gpt-4o-mini")
    .option("--quota <name=limit...>", "a quota, such as stored_bytes=50GB; may be repeated")
    .option("--files-expire-after <time>", "the longest lifetime of its files, such as 30d")
    .option("--results-expire-after <time>", "the longest lifetime of its results")
    .action((name: string, flags: CreateFlags) =>
      begin(flags, (opened) => put(name, flags, opened)),
    );
  withOptions(projects.command("delete"))
    .argument("<name>", "the project")
    .requiredOption("--yes", "delete its keys, batches, files, uploads, usage and rules for good")
    .description("Delete all data of a project, and wait until it is gone.")
    .action((name: string, flags: Overrides) =>
      runOnFiles(flags, (opened) => remove(name, opened)),
    );
}

async function put(name: string, flags: CreateFlags, opened: Administration): Promise<number> {
  const { projects } = opened;
  const { weight, models, filesExpireAfter, resultsExpireAfter } = flags;
  const entry = {
    name,
    quotas: Object.fromEntries((flags.quota ?? []).map(pairOf)),
    ...(weight !== undefined && { weight }),
    ...(models !== undefined && { models: models.split(",") }),
    ...(filesExpireAfter !== undefined && { files_expire_after: filesExpireAfter }),
    ...(resultsExpireAfter !== undefined && { results_expire_after: resultsExpireAfter }),
  };
  const asked = ProjectEntry.safeParse(entry, { reportInput: true });
  // The schema of the configuration knows units, and the schema of the API the lengths of names.
  const settings = asked.success ? PutProject.safeParse(asked.data) : null;
  for (const issue of (settings ?? asked).error?.issues ?? []) {
    for (const problem of describeIssue(issue, ProjectEntry)) complainInLines(problem);
  }
  if (settings?.data === undefined) return FAILED;
  const { name: project, ...rules } = settings.data;
  return reporting(async () => {
    await projects.put(project, rules);
    sayLines(`made ${project}; every server follows its rules within five seconds`);
    tellOfNew(opened);
  });
}

function pairOf(quota: string): [string, string] {
  const [name = "", ...limit] = quota.split("=");
  return [name, limit.join("=")];
}

async function list({ json }: ListFlags, { projects }: Administration): Promise<number> {
  const every = everyOne(
    (page: { limit: number; after: string | null }) => projects.list(page),
    ({ name }) => name,
  );
  return sayEach(every, json ? presentProject : { head: HEAD, rowOf, none: NONE });
}

const NONE = "No projects were made. batchd projects create makes one.";
const HEAD = ["NAME", "WEIGHT", "MODELS", "QUOTAS", "MADE", "DELETED"];

const rowOf = ({ name, rules, createdAtMs, deletedAtMs }: StoredProject): string[] => {
  const quotas = Object.entries(rules.quotas).map(([quota, limit]) => `${quota}=${limit}`);
  return [
    name,
    String(rules.weight),
    rules.models.join(","),
    quotas.join(",") || "none",
    dateOf(createdAtMs),
    deletedAtMs === null ? "no" : dateOf(deletedAtMs),
  ];
};

const remove = (name: string, { projects, purge, clock }: Administration): Promise<number> =>
  reporting(async () => {
    await projects.delete(name);
    for (let left = await purge(name); left > 0; left = await purge(name)) {
      await sleep(clock, LOOK_EVERY_MS);
    }
    sayLines(`deleted ${name} and all its data`);
  });
