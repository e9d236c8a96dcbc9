/** The manual pages of the commands for operators: examples and exit codes below the options. */
import type { Command } from "commander";
import { addManual } from "../client/help.ts";

interface Manual {
  readonly examples: readonly (readonly [command: string, purpose: string])[];
  readonly exitCodes: readonly (readonly [code: number, meaning: string])[];
  readonly more?: string;
}

const DONE = [0, "done"] as const;
const NO_CONFIG = "the configuration has problems, each of which is printed";
const NO_STORE = "the configuration has problems, or the database cannot be opened";

const MANUALS: Readonly<Record<string, Manual>> = {
  serve: {
    examples: [
      ["batchd serve --upstream http://localhost:8000/v1", "one model server for every model"],
      [
        "batchd serve --config batchd.yaml",
        "keys, prices, several upstreams: docs/configuration.md",
      ],
      [
        "batchd serve --config batchd.yaml --role worker",
        "runs batches only, beside other servers",
      ],
      ["kill -HUP PID", "reads the configuration again, without a restart"],
    ],
    exitCodes: [
      [0, "stopped by SIGTERM or Ctrl-C; open batches go on at the next start"],
      [1, "it could not start: the configuration, the port, the data folder or the database"],
      [130, "a second signal ended it before requests under way were over"],
    ],
    more: "`batchd` alone is `batchd serve`. Flags win over the environment, and the environment over the file.\nThe log goes to standard error: JSON, or lines for people in a terminal.",
  },
  check: {
    examples: [
      ["batchd check --config batchd.yaml", "prints what would be in force, without secrets"],
      [
        "batchd check --config batchd.yaml && systemctl reload batchd",
        "reloads only what is right",
      ],
    ],
    exitCodes: [
      [0, "the configuration is right; warnings, as of upstreams that do not answer, are printed"],
      [1, NO_CONFIG],
    ],
    more: "`batchd validate FILE` checks input files.",
  },
  migrate: {
    examples: [["batchd migrate --config batchd.yaml", "before the first server of a new version"]],
    exitCodes: [
      [0, "the tables are those of this version"],
      [1, `${NO_STORE}, or a newer version has changed it`],
    ],
    more: "A server does the same when it starts. A copy of the data folder, or of the database, is the way back.",
  },
  "migrate-to": {
    examples: [
      [
        "batchd migrate-to --data-dir ./data --database-url postgres://db/batchd --storage s3://bucket/batchd/",
        "from one machine to a fleet",
      ],
      ["batchd migrate-to --config fleet.yaml --to-data-dir ./data", "and back"],
    ],
    exitCodes: [
      [0, "everything was copied, and both sides were compared"],
      [1, "it could not go on, and says why; the same command goes on where it was"],
    ],
  },
  "keys create": {
    examples: [
      [
        "KEY=$(batchd keys create --name ci --project search)",
        "keeps the key; the rest goes to the terminal",
      ],
      [
        "batchd keys create --name boss --scopes admin --expires-in 12h",
        "a key for the pages of keys and upstreams",
      ],
    ],
    exitCodes: [DONE, [1, `an option is wrong, ${NO_STORE}`]],
    more: "From the first key on, the server asks every client for one.",
  },
  "keys list": {
    examples: [["batchd keys list --config batchd.yaml", "ids, scopes, ends and last uses"]],
    exitCodes: [DONE, [1, NO_STORE]],
  },
  "keys revoke": {
    examples: [["batchd keys revoke key_0f3c…", "its sessions at the web page end, too"]],
    exitCodes: [DONE, [1, "there is no such key: `batchd keys list` has them"]],
  },
  "projects create": {
    examples: [
      [
        "batchd projects create search --weight 2 --quota stored_bytes=50GB",
        "twice the share of others",
      ],
      ["batchd projects create search --models 'llama-3*'", "replaces the rules from before"],
    ],
    exitCodes: [DONE, [1, `a rule is wrong, ${NO_STORE}`]],
  },
  "projects list": {
    examples: [["batchd projects list", "with weights, models and quotas"]],
    exitCodes: [DONE, [1, NO_STORE]],
  },
  "projects delete": {
    examples: [["batchd projects delete search --yes", "waits until nothing is left"]],
    exitCodes: [DONE, [1, "there is no such project, or it is in the configuration file"]],
  },
  openapi: {
    examples: [["batchd openapi > openapi.yaml", "for generators of clients"]],
    exitCodes: [DONE],
  },
};

/** Stands below the list of all commands. */
export const FIRST_STEPS = `
Examples:
  batchd serve --upstream http://localhost:8000/v1
      a server with a page at http://127.0.0.1:8080; batchd alone is batchd serve
  batchd validate questions.jsonl
      every fault of an input file, before it is sent
  batchd submit questions.jsonl -o answers.jsonl
      a whole batch at the server, with a progress bar
  batchd run questions.jsonl -o answers.jsonl --upstream http://localhost:8000/v1
      the same without a server

The help of each command, such as batchd submit --help, has its examples, exit codes and variables.`;

/** Gives each command of the table its manual page. A name that no command has is a mistake in the table. */
export function addOperatorManuals(program: Command): void {
  for (const [path, { examples, exitCodes, more }] of Object.entries(MANUALS)) {
    const command = path
      .split(" ")
      .reduce<Command | undefined>(
        (parent, name) => parent?.commands.find((each) => each.name() === name),
        program,
      );
    if (command === undefined) throw new Error(`no command is called ${path}`);
    addManual(command, {
      examples,
      exitCodes,
      asksServer: false,
      ...(more !== undefined && { more }),
    });
  }
}
