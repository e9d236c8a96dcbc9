/** The command `batchd pipeline run`, as commander knows it. */
import type { Command } from "commander";
import type { Ask } from "./asking.ts";
import { addManual } from "./help.ts";
import { fileName, wholeNumber, withFormat, withJson, withServer } from "./options.ts";
import type { PipelineFlags } from "./pipeline.ts";
import type { ClientFlags } from "./session.ts";

const MORE = `FILE is YAML: name, and steps with name, endpoint, template and more (docs/pipelines.md).
DATA has a JSON object on each line: a row for the template of the first step, or a request if it has none.
All steps are created at once, and the server goes on with them without the command. Run the command again to watch
them, or to go on where it was killed: it finds its batches at the server. A step that was changed runs anew, with all behind it.`;

export function addPipelineCommand(program: Command, ask: Ask): void {
  const pipelines = program
    .command("pipeline")
    .description("Run batches that follow one another. Only batchd has this.");
  const run = withFormat(withServer(pipelines.command("run")));
  addManual(
    withJson(run, "print each change as a line of JSON")
      .summary("Create the batches of a pipeline, and watch them to the end.")
      .description("Create the batches of a pipeline, and watch them to the end of the last one.")
      .argument("<file>", "the steps, as YAML", fileName)
      .argument("<data>", "the rows, one JSON object a line; - for standard input", fileName)
      .option("--from-step <number>", "do this step and those behind it again", wholeNumber(1))
      .option("-o, --output <file>", "write the answers of the last step to this file", fileName),
    {
      examples: [
        ["batchd pipeline run steps.yaml rows.jsonl -o answers.jsonl", "runs all steps"],
        ["batchd pipeline run steps.yaml rows.jsonl --from-step 3", "does step 3 again"],
      ],
      waits: true,
      more: MORE,
    },
  ).action((file: string, data: string, flags: PipelineFlags & ClientFlags) =>
    ask(flags, async (session) =>
      (await import("./pipeline.ts")).runPipeline(file, data, { flags, session }),
    ),
  );
}
