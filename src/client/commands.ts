/**
 * The commands of a client, as commander knows them. What they do is loaded when one of them runs: the SDK and the
 * progress bar would make every start of a server slower.
 */
import { type Command, Option } from "commander";
import { BATCH_ENDPOINTS, BATCH_STATUSES } from "../contract/batch.ts";
import { RESULT_FORMATS } from "../contract/results.ts";
import { DEFAULT_COMPLETION_WINDOW } from "../contract/window.ts";
import type { Ask } from "./asking.ts";
import type { Change, ChangeFlags, DeleteFlags, ListFlags, ResultsFlags } from "./batches.ts";
import type { DeliverFlags } from "./deliveries.ts";
import { EXIT } from "./exit-codes.ts";
import { addManual } from "./help.ts";
import {
  amount,
  fileName,
  id,
  keyValue,
  modelName,
  unixSeconds,
  wholeNumber,
  window,
  withFormat,
  withJson,
  withServer,
} from "./options.ts";
import type { ClientFlags } from "./session.ts";
import type { RetryFlags, SubmitFlags } from "./submit.ts";

export function addBatchCommands(program: Command, ask: Ask): void {
  program.commandsGroup("Batches, at any server with OpenAI's API:");
  addSubmit(program, ask);
  addReading(program, ask);
  addResults(program, ask);
  addChanges(program, ask);
  addRetry(program, ask);
  addDelete(program, ask);
  addDeliveries(program, ask);
}

const withWait = (command: Command): Command =>
  withFormat(
    command
      .option("-w, --wait", "wait for the end, and show how the batch gets on")
      .option(
        "-o, --output <file>",
        "wait, and write the answers to this file; - is standard output",
        fileName,
      ),
  );

/** Adds what only batchd knows about a batch. */
const withBatchOptions = (command: Command, defaultWindow?: string): Command =>
  command
    .option("--metadata <key=value>", "kept with the batch; may be given several times", keyValue)
    .option(
      "--window <time>",
      "time in which the batch ends, in hours or days",
      window,
      defaultWindow,
    )
    .option("--model <name>", "model for lines that name none", modelName)
    .option(
      "--priority <number>",
      "share of the batch beside others, -10 to 10",
      wholeNumber(-10, 10),
    )
    .option(
      "--sample <lines>",
      "run so many lines, spread over the file, then pause",
      wholeNumber(1, 1_000),
    )
    .option("--budget <amount>", "pause before the batch costs more than this", amount)
    .option("--dedupe", "send lines with equal bodies once, and answer all of them");

const MORE_ABOUT_WAITING = `A wait survives restarts of the server and broken networks. Ctrl-C ends the wait, not the batch.
Lines that failed are written beside FILE of --output: answers.errors.jsonl for answers.jsonl.
--model, --priority, --sample, --budget and --dedupe are extensions of batchd; another server is not sent them unless they are given.`;

function addSubmit(program: Command, ask: Ask): void {
  const command = withServer(program.command("submit"))
    .summary("Upload a file and make a batch of it.")
    .description(
      "Upload a file of requests, one JSON object a line, and make a batch of it. Prints the id of the batch.",
    )
    .argument(
      "<file>",
      "the file; - for standard input; or the id of a file at the server",
      fileName,
    )
    .addOption(
      new Option(
        "--endpoint <path>",
        "endpoint of the requests; else the one in the first line",
      ).choices(BATCH_ENDPOINTS),
    );
  const withOptions = withBatchOptions(command, DEFAULT_COMPLETION_WINDOW);
  addManual(withJson(withWait(withOptions), "print the batch as JSON"), {
    examples: [
      ["batchd submit questions.jsonl", "makes a batch and prints its id"],
      ["batchd submit questions.jsonl -o answers.jsonl", "waits, and writes the answers"],
      ["cat questions.jsonl | batchd submit - -o - | jq .custom_id", "reads and writes pipes"],
      ["batchd submit questions.jsonl --sample 20 --wait", "tries 20 lines first"],
    ],
    waits: true,
    more: MORE_ABOUT_WAITING,
  }).action((file: string, flags: SubmitFlags & ClientFlags) =>
    ask(flags, async (session) => (await import("./submit.ts")).submit(file, flags, session)),
  );
}

function addReading(program: Command, ask: Ask): void {
  addManual(
    withJson(withServer(program.command("list")), "print each batch as a line of JSON")
      .description("List batches, the newest first.")
      .option("--limit <number>", "at most so many", wholeNumber(1), 20)
      .addOption(
        new Option("--status <status>", "only batches with this status").choices(BATCH_STATUSES),
      )
      .addOption(
        new Option("--endpoint <path>", "only batches for this endpoint").choices(BATCH_ENDPOINTS),
      )
      .option("--model <name>", "only batches with this model")
      .option(
        "--created-after <time>",
        "only later ones: a date such as 2026-01-31, or Unix seconds",
        unixSeconds,
      )
      .option(
        "--metadata <key=value>",
        "only batches with this pair; may be given several times",
        keyValue,
      )
      .option("--search <text>", "a text in the id, the metadata or the file name; needs batchd"),
    {
      examples: [
        ["batchd list --limit 100 --json | jq -r .id", "prints ids alone"],
        ["batchd list --status in_progress --metadata team=search", "what a team has running"],
        ["batchd list --search nightly --created-after 2026-01-31", "finds a batch by its name"],
      ],
    },
  ).action((flags: ListFlags & ClientFlags) =>
    ask(flags, async (session) => (await import("./batches.ts")).listBatches(flags, session)),
  );
  addManual(
    withJson(withServer(program.command("show")))
      .description("Show a batch: progress, why it waits, tokens, cost, failures, faults.")
      .argument("<batch>", "its id", id),
    { examples: [["batchd show batch_… --json | jq .request_counts", "prints a part of it"]] },
  ).action((id: string, flags: ClientFlags) =>
    ask(flags, async (session) => (await import("./batches.ts")).showBatch(id, flags, session)),
  );
  addManual(
    withJson(withServer(program.command("watch")), "print each change as a line of JSON")
      .description("Watch a batch to its end: bar, rate, time left, failures, cost, why it waits.")
      .argument("<batch>", "its id", id),
    {
      examples: [["batchd watch batch_…; batchd results batch_… -o answers.jsonl", "waits first"]],
      waits: true,
    },
  ).action((id: string, flags: ClientFlags) =>
    ask(flags, async (session) => (await import("./batches.ts")).watchBatch(id, flags, session)),
  );
}

function addResults(program: Command, ask: Ask): void {
  addManual(
    withFormat(
      withServer(program.command("results"))
        .description("Write the answers of a batch, or those so far of one that still runs.")
        .argument("<batch>", "its id", id)
        .option("-o, --output <file>", "the file to write; standard output if left out", fileName)
        .option("--errors", "the lines that failed, in place of the answers"),
    ),
    {
      examples: [
        ["batchd results batch_… -o answers.jsonl", "the file is complete, or not there"],
        ["batchd results batch_… --format csv -o answers.csv", "a table for a spreadsheet"],
        ["batchd results batch_… --errors | jq .response.body.error", "why lines failed"],
      ],
    },
  ).action((id: string, flags: ResultsFlags & ClientFlags) =>
    ask(flags, async (session) => (await import("./batches.ts")).batchResults(id, flags, session)),
  );
}

const CHANGES: Readonly<Record<Change, string>> = {
  cancel: "Cancel a batch. Answers that exist are kept.",
  pause: "Send no new lines of a batch until it is resumed. Only batchd has this.",
  resume: "Go on with a paused batch. Only batchd has this.",
};

function addChanges(program: Command, ask: Ask): void {
  for (const change of Object.keys(CHANGES) as Change[]) {
    const command = withJson(withServer(program.command(change)))
      .description(CHANGES[change])
      .argument("<batch>", "its id", id);
    if (change === "resume") {
      command.option("--budget <amount>", "give it another budget first", amount);
    }
    addManual(command, {
      examples: [[`batchd ${change} batch_…`, "prints what has become of it"]],
    }).action((id: string, flags: ChangeFlags & ClientFlags) =>
      ask(flags, async (session) =>
        (await import("./batches.ts")).changeBatch(id, { ...flags, change }, session),
      ),
    );
  }
}

const MORE_ABOUT_RETRIES = `The new batch has the window, the metadata, the priority, the budget and the default model of the old one, where no option says otherwise.
--metadata adds to them.`;

function addRetry(program: Command, ask: Ask): void {
  const command = withServer(program.command("retry"))
    .summary("Run lines of a batch again, as a new batch. Only batchd has this.")
    .description(
      "Make a new batch of lines of another one, without an upload. Only batchd has this. Prints the id of the new batch.",
    )
    .argument("<batch>", "the id of the old batch", id)
    .addOption(
      new Option(
        "--lines <which>",
        "lines of the old batch; failed ones include those that never ran",
      )
        .choices(["failed", "succeeded", "all"])
        .default("failed"),
    )
    .option(
      "--merge",
      "results for all lines of the old batch, the new answers in place of the old",
    );
  addManual(withJson(withWait(withBatchOptions(command)), "print the batch as JSON"), {
    examples: [["batchd retry batch_… --merge -o answers.jsonl", "all answers in one file"]],
    waits: true,
    more: MORE_ABOUT_RETRIES,
  }).action((id: string, flags: RetryFlags & ClientFlags) =>
    ask(flags, async (session) => (await import("./submit.ts")).retry(id, flags, session)),
  );
}

function addDelete(program: Command, ask: Ask): void {
  addManual(
    withJson(withServer(program.command("delete")))
      .description(
        "Delete a batch with its results. In a terminal it asks first. Only batchd has this.",
      )
      .argument("<batch>", "its id", id)
      .option("--input", "delete the input file as well")
      .option("-y, --yes", "do not ask"),
    { examples: [["batchd delete batch_… --input --yes", "leaves nothing behind"]] },
  ).action((id: string, flags: DeleteFlags & ClientFlags) =>
    ask(flags, async (session) => (await import("./batches.ts")).deleteBatch(id, flags, session)),
  );
}

function addDeliveries(program: Command, ask: Ask): void {
  const deliver = withJson(withServer(program.command("deliver")), "print the delivery as JSON")
    .summary("Take the results of a batch to a location. Only batchd has this.")
    .description(
      "Take the results of an ended batch to a location of the server. Only batchd has this.",
    )
    .argument("<batch>", "its id", id)
    .argument("<location>", "the name of the location")
    .option("--path <folder>", "a folder below the location")
    .addOption(new Option("--format <format>", "form of the results").choices(RESULT_FORMATS))
    .option("-w, --wait", "wait until the results are there, or cannot be delivered");
  addManual(deliver, {
    examples: [
      ["batchd deliver batch_… lake --format csv --wait", "waits until the files are there"],
    ],
    exitCodes: [
      [EXIT.done, "the delivery is made, and with --wait the files are there"],
      [EXIT.error, "the server refused it, or with --wait it failed"],
      [EXIT.interrupted, "Ctrl-C; the delivery goes on without the command"],
    ],
  }).action((id: string, location: string, flags: DeliverFlags & ClientFlags) =>
    ask(flags, async (session) =>
      (await import("./deliveries.ts")).deliver(id, { ...flags, location }, session),
    ),
  );
  addManual(
    withJson(withServer(program.command("deliveries")), "print each delivery as a line of JSON")
      .description("List the deliveries of a batch, the newest first. Only batchd has this.")
      .argument("<batch>", "its id", id),
    { examples: [["batchd deliveries batch_…", "where its results are"]] },
  ).action((id: string, flags: ClientFlags) =>
    ask(flags, async (session) =>
      (await import("./deliveries.ts")).listDeliveries(id, flags, session),
    ),
  );
}
