/** The command `batchd run`, as commander knows it. */
import { type Command, Option } from "commander";
import { BATCH_ENDPOINTS } from "../contract/batch.ts";
import { EXIT, EXIT_MEANINGS } from "./exit-codes.ts";
import { addManual } from "./help.ts";
import { fileName, wholeNumber, withFormat, withJson } from "./options.ts";

const MORE = `The run keeps what is done in a folder: .FILE.batchd beside the output FILE, or .batchd-HASH here for a pipe.
Killed and started again, it sends only the lines without an answer. The folder is deleted at the end.
Lines that failed are written beside the output: answers.errors.jsonl for answers.jsonl. For a pipe they are in
batchd-HASH.errors.jsonl here, or in errors.jsonl of --data-dir.

Environment:
  BATCHD_UPSTREAM_API_KEY  the key for --upstream
  OPENAI_API_KEY           the key if --upstream is OPENAI_BASE_URL or api.openai.com
  NO_COLOR                 set to anything: no colours`;

/** The batch of a run has no server at which it could be paused or cancelled, or go on without the command. */
const EXIT_CODES = [
  ...EXIT_MEANINGS.filter(([code]) => code <= EXIT.failed),
  [EXIT.endedEarly, "the window of the batch is over"],
  [EXIT.interrupted, "Ctrl-C; the same command goes on where it was"],
] as const;

/** Adds the command. `act` is given the file and the options. */
export function addRun(
  program: Command,
  act: (file: string, flags: object) => Promise<void>,
): void {
  const command = program
    .command("run")
    .summary("Run a whole batch in this process, without a server.")
    .description(
      "Run a whole batch in this process, without a server and without a port: read FILE, send its lines to a model server, and write the answers in the order of the input.",
    )
    .argument("<file>", "the file; - for standard input", fileName)
    .requiredOption(
      "-o, --output <file>",
      "the file for the answers; - is standard output",
      fileName,
    )
    .option("--upstream <url>", "the model server, such as http://localhost:8000/v1")
    .option("--config <file>", "configuration with upstreams, limits and prices")
    .option("--model <name>", "model for lines that name none")
    .addOption(
      new Option("--endpoint <path>", "endpoint; else the one in the first line").choices(
        BATCH_ENDPOINTS,
      ),
    )
    .option("--concurrency <number>", "most requests at once to --upstream", wholeNumber(1))
    .option("--data-dir <dir>", "the folder for what is done; it is kept at the end")
    .option("--overwrite", "send all lines again although the output is there");
  addManual(withJson(withFormat(command), "print each change as a line of JSON"), {
    examples: [
      [
        "batchd run questions.jsonl -o answers.jsonl --upstream http://localhost:11434/v1",
        "shows a bar and ends when all lines are answered",
      ],
      [
        "batchd run questions.jsonl -o answers.jsonl --config batchd.yaml",
        "takes upstreams with keys, rates and prices from a file",
      ],
    ],
    exitCodes: EXIT_CODES,
    asksServer: false,
    more: MORE,
  }).action(act);
}
