/**
 * The completion of commands in a shell. The library reads the commands and options from commander. The script of a
 * shell calls `batchd complete -- …` at each Tab, so nothing of it is loaded otherwise.
 */
import { readdirSync } from "node:fs";
import type { Command } from "commander";
import { SCRIPTS } from "./completion-scripts.ts";
import { addManual } from "./help.ts";

const COMPLETION = "completion";
/** The command that the scripts call. */
const COMPLETE = "complete";
const DESCRIPTION = "Print the script that completes commands in bash, zsh or fish.";
const SHELLS = "bash, zsh or fish";
const NAMES = ["bash", "zsh", "fish"];

const EXAMPLES = [
  ["source <(batchd completion bash)", "in ~/.bashrc"],
  ["source <(batchd completion zsh)", "in ~/.zshrc, after compinit"],
  ["batchd completion fish > ~/.config/fish/completions/batchd.fish", "once"],
] as const;

/** The options whose value is a path. */
const FILE_OPTIONS = ["output", "config", "data-dir", "to-data-dir", "to-config"];

/** Proposes what is in the folder of the word so far. The library would propose nothing. */
function completePath(this: unknown, complete: (value: string, description: string) => void): void {
  const word = process.argv.at(-1) ?? "";
  const folder = word.slice(0, word.lastIndexOf("/") + 1);
  try {
    for (const entry of readdirSync(folder === "" ? "." : folder, { withFileTypes: true })) {
      complete(`${folder}${entry.name}${entry.isDirectory() ? "/" : ""}`, "");
    }
  } catch {
    // There is nothing to propose in a folder that cannot be read.
  }
}

function completeShell(
  this: unknown,
  complete: (value: string, description: string) => void,
): void {
  for (const name of NAMES) complete(name, "");
}

/** Adds the commands. `asked` is the command that the user has given. */
export async function addCompletion(program: Command, asked: string | undefined): Promise<void> {
  program.commandsGroup("Help:");
  if (asked !== COMPLETION && asked !== COMPLETE) {
    const command = program.command(COMPLETION).argument("<shell>", SHELLS);
    addManual(command.description(DESCRIPTION), { examples: EXAMPLES, asksServer: false });
    return;
  }
  const { default: tab } = await import("@bomb.sh/tab/commander");
  const root = tab(program, { completionCommandName: COMPLETION });
  for (const each of root.commands.values()) {
    for (const argument of each.arguments.values()) {
      if (argument.name === "shell") argument.handler = completeShell;
      if (argument.name === "file" || argument.name === "data") argument.handler = completePath;
    }
    for (const option of each.options.values()) {
      if (FILE_OPTIONS.includes(option.value)) option.handler = completePath;
    }
  }
  const command = program.commands.find((each) => each.name() === COMPLETION);
  if (command === undefined) return;
  // The library has a script for PowerShell, too, which evaluates the words of the command line.
  command.registeredArguments[0]?.choices(NAMES);
  addManual(command.description(DESCRIPTION), { examples: EXAMPLES, asksServer: false });
  const name = program.name();
  command.action((shell: string) => {
    const script = SCRIPTS[shell];
    if (script === undefined) root.setup(name, name, shell);
    else process.stdout.write(script);
  });
}
