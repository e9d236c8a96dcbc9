/** The commands that look at an input file without a server, as commander knows them. */
import { type Command, InvalidArgumentError, Option } from "commander";
import { BATCH_ENDPOINTS } from "../contract/batch.ts";
import type { Finish } from "./asking.ts";
import type { EstimateFlags, GivenPrice } from "./estimate.ts";
import { EXIT, SIMPLE_EXIT_MEANINGS } from "./exit-codes.ts";
import { addManual } from "./help.ts";
import { fileName, wholeNumber, withJson } from "./options.ts";
import type { ValidateFlags } from "./validate.ts";

export function addFileChecks(program: Command, finish: Finish): void {
  program.commandsGroup("Input files, without a server:");
  addManual(
    withJson(program.command("validate"), "print each fault as a line of JSON")
      .summary("List every fault of an input file.")
      .description(
        "List every fault of an input file with its line, by the rules that the server validates with. Nothing is sent.",
      )
      .argument("<file>", "the file; - for standard input", fileName)
      .addOption(
        new Option("--endpoint <path>", "endpoint; else the one in the first line").choices(
          BATCH_ENDPOINTS,
        ),
      )
      .option("--model <name>", "model for lines that name none")
      .option("--config <file>", "configuration with the limits and models of the server"),
    {
      examples: [
        ["batchd validate questions.jsonl", "prints questions.jsonl:17: … for each fault"],
        ["batchd validate questions.jsonl && batchd submit questions.jsonl", "checks first"],
      ],
      asksServer: false,
      exitCodes: [
        ...SIMPLE_EXIT_MEANINGS,
        [EXIT.failed, "the file has faults: a batch of it would fail"],
      ],
    },
  ).action((file: string, flags: ValidateFlags) =>
    finish(import("./validate.ts").then(({ validate }) => validate(file, flags))),
  );
  addManual(
    withJson(program.command("estimate"), "print each model as a line of JSON")
      .summary("Estimate the tokens and the price of an input file.")
      .description("Estimate the tokens and the price of an input file. Nothing is sent.")
      .argument("<file>", "the file; - for standard input", fileName)
      .option("--sample <lines>", "read so many lines, spread over the file", wholeNumber(1))
      .option("--price <in/out>", "price of a million tokens, such as 0.50/1.50", givenPrice)
      .option("--model <name>", "model for lines that name none")
      .option("--config <file>", "configuration with prices"),
    {
      examples: [
        ["batchd estimate questions.jsonl --price 0.50/1.50", "lines, tokens and cost"],
        ["batchd submit questions.jsonl --sample 20 --wait", "measures instead, with 20 lines"],
      ],
      asksServer: false,
    },
  ).action((file: string, flags: EstimateFlags) =>
    finish(import("./estimate.ts").then(({ estimate }) => estimate(file, flags))),
  );
}

function givenPrice(text: string): GivenPrice {
  const match = /^(\d{1,12}(?:\.\d{1,12})?)\/(\d{1,12}(?:\.\d{1,12})?)$/.exec(text);
  const [, input, output] = match ?? [];
  if (input !== undefined && output !== undefined) return { input, output };
  throw new InvalidArgumentError("Expected two prices such as 0.50/1.50, for input and output.");
}
