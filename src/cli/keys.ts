/** The commands `batchd keys …`. A new key goes to standard output alone, so that a script can take it from there. */
import type { Command } from "commander";
import type { CreatedKey } from "../api/keys.ts";
import type { UntrustedId } from "../batch/batch.ts";
import { withJson } from "../client/options.ts";
import type { Overrides } from "../config/overrides.ts";
import { describeIssue } from "../config/problems.ts";
import { lifetimeSeconds } from "../config/values.ts";
import { CreateKey, DEFAULT_PROJECT } from "../contract/key.ts";
import { DEFAULT_SCOPES, SCOPES } from "../contract/scope.ts";
import { presentKey } from "../http/present.ts";
import type { Administration } from "../runtime/administration.ts";
import type { StoredKey } from "../store/keys.ts";
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

interface CreateFlags extends Overrides {
  readonly name: string;
  readonly project: string;
  readonly scopes: string;
  readonly expiresIn?: string;
}

export function addKeyCommands(program: Command, { withOptions, run, begin }: Commands): void {
  const keys = program.command("keys").description("Make, list and revoke keys of the API.");
  withOptions(keys.command("create"))
    .description("Make a key and print it. It is shown only once.")
    .requiredOption("--name <name>", "what the key is for, as logs and lists show it")
    .option("--project <project>", "the project whose files and batches it sees", DEFAULT_PROJECT)
    .option(
      "--scopes <scopes>",
      `what it may do: some of ${SCOPES.join(",")}`,
      DEFAULT_SCOPES.join(","),
    )
    .option("--expires-in <time>", "its lifetime, such as 12h or 90d; without it there is no end")
    .action((flags: CreateFlags) => begin(flags, (opened) => create(flags, opened)));
  withJson(withOptions(keys.command("list")), "print each key as a line of JSON")
    .description("List the keys that were made, without the keys themselves.")
    .action((flags: ListFlags) => run(flags, (opened) => list(flags, opened)));
  withOptions(keys.command("revoke"))
    .argument("<id>", "the id of the key, such as key_0f3c…")
    .description("Revoke a key. Every server refuses it within five seconds.")
    .action((id: string, flags: Overrides) => run(flags, (opened) => revoke(id, opened)));
}

async function create(flags: CreateFlags, opened: Administration): Promise<number> {
  const { keys, clock } = opened;
  const { name, project } = flags;
  const asked = CreateKey.safeParse(
    { name, project, scopes: flags.scopes.split(",") },
    { reportInput: true },
  );
  const lifetime = lifetimeSeconds.optional().safeParse(flags.expiresIn);
  const issues = [
    ...(asked.error?.issues ?? [])
      // An option has no places within.
      .flatMap((issue) => describeIssue({ ...issue, path: issue.path.slice(0, 1) }, CreateKey))
      .map((problem) => `--${problem}`),
    ...(lifetime.error?.issues ?? []).map(({ message }) => `--expires-in: ${message}`),
  ];
  for (const issue of new Set(issues)) complainInLines(issue);
  if (!asked.success || !lifetime.success) return FAILED;
  return reporting(async () => {
    const { key, text } = await keys.create({
      name,
      project,
      scopes: asked.data.scopes,
      expiresAtMs: lifetime.data === undefined ? null : clock.nowMs() + lifetime.data * 1000,
    });
    sayLines(text);
    complainInLines(`made ${summaryOf(key)}. The key above is shown only now.`);
    tellOfNew(opened);
  });
}

const summaryOf = ({ id, name, project, scopes, expiresAtMs }: CreatedKey["key"]) =>
  `${id} (${name}) of the project ${project}, which may ${scopes.join(", ")}${expiresAtMs === null ? "" : ` until ${dateOf(expiresAtMs)}`}`;

async function list({ json }: ListFlags, { keys }: Administration): Promise<number> {
  const every = everyOne<StoredKey, UntrustedId<"key">>(
    (page) => keys.list(page),
    ({ id }) => id,
  );
  return sayEach(every, json ? presentKey : { head: HEAD, rowOf, none: NONE });
}

const NONE = "No keys were made. batchd keys create makes one.";
const HEAD = ["ID", "NAME", "PROJECT", "SCOPES", "EXPIRES", "LAST USED"];

const rowOf = ({ id, name, project, scopes, expiresAtMs, lastUsedAtMs }: StoredKey): string[] => [
  id,
  name,
  project,
  scopes.join(","),
  expiresAtMs === null ? "never" : dateOf(expiresAtMs),
  lastUsedAtMs === null ? "never" : dateOf(lastUsedAtMs),
];

const revoke = (id: string, { keys }: Administration): Promise<number> =>
  reporting(async () => {
    const revoked = await keys.revoke(id as UntrustedId<"key">);
    sayLines(`revoked ${revoked}; every server refuses it within five seconds`);
  });
