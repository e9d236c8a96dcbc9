/** The commands `batchd files …`, as commander knows them. */
import { type Command, Option } from "commander";
import { FilePurpose, UPLOAD_PURPOSES } from "../contract/file.ts";
import type { Ask } from "./asking.ts";
import type { FileListFlags, UploadFlags } from "./files.ts";
import { addManual } from "./help.ts";
import { fileName, id, wholeNumber, withJson, withServer } from "./options.ts";
import type { ClientFlags } from "./session.ts";

export function addFileCommands(program: Command, ask: Ask): void {
  const files = program.command("files").description("List, read, upload and delete files.");
  addListing(files, ask);
  addContent(files, ask);
  addManual(
    withJson(withServer(files.command("delete")))
      .description("Delete a file. In a terminal it asks first.")
      .argument("<file>", "its id", id)
      .option("-y, --yes", "do not ask"),
    { examples: [["batchd files delete file-… --yes", "deletes it at once"]] },
  ).action((id: string, flags: ClientFlags & { readonly yes?: boolean }) =>
    ask(flags, async (session) => (await import("./files.ts")).deleteFile(id, flags, session)),
  );
}

function addListing(files: Command, ask: Ask): void {
  addManual(
    withJson(withServer(files.command("list")), "print each file as a line of JSON")
      .description("List files, the newest first.")
      .option("--limit <number>", "at most so many", wholeNumber(1), 20)
      .addOption(
        new Option("--purpose <purpose>", "only files of this kind").choices(FilePurpose.options),
      ),
    { examples: [["batchd files list --purpose batch_output", "lists results"]] },
  ).action((flags: FileListFlags & ClientFlags) =>
    ask(flags, async (session) => (await import("./files.ts")).listFiles(flags, session)),
  );
  addManual(
    withJson(withServer(files.command("show")))
      .description("Show what is known of a file.")
      .argument("<file>", "its id", id),
    { examples: [["batchd files show file-…", "name, size, kind and dates"]] },
  ).action((id: string, flags: ClientFlags) =>
    ask(flags, async (session) => (await import("./files.ts")).showFile(id, flags, session)),
  );
}

function addContent(files: Command, ask: Ask): void {
  addManual(
    withJson(withServer(files.command("upload")))
      .description("Upload a file and print its id. A file above 64 MiB goes in parts.")
      .argument("<file>", "the file; - for standard input", fileName)
      .addOption(
        new Option("--purpose <purpose>", "kind of the file")
          .choices(UPLOAD_PURPOSES)
          .default("batch"),
      ),
    { examples: [["batchd files upload questions.jsonl", "for batchd submit file-…"]] },
  ).action((path: string, flags: UploadFlags & ClientFlags) =>
    ask(flags, async (session) => (await import("./files.ts")).upload(path, flags, session)),
  );
  addManual(
    withServer(files.command("download"))
      .description("Write the content of a file.")
      .argument("<file>", "its id", id)
      .option("-o, --output <file>", "the file to write; standard output if left out", fileName),
    { examples: [["batchd files download file-… -o answers.jsonl", "complete, or not there"]] },
  ).action((id: string, flags: ClientFlags & { readonly output?: string }) =>
    ask(flags, async (session) => (await import("./files.ts")).download(id, flags, session)),
  );
}
