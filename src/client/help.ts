/** The texts below the options of each help page: examples, exit codes, and the variables of the environment. */
import type { Command } from "commander";
import { EXIT_MEANINGS, SIMPLE_EXIT_MEANINGS } from "./exit-codes.ts";

const row = (name: string, meaning: string) => `  ${name.padEnd(18)}${meaning}`;

const section = (title: string, rows: readonly string[]) => `\n${title}:\n${rows.join("\n")}`;

const exitCodes = (meanings: typeof EXIT_MEANINGS) =>
  section(
    "Exit codes",
    meanings.toSorted(([a], [b]) => a - b).map(([code, meaning]) => row(String(code), meaning)),
  );

const EXIT_CODES = exitCodes(EXIT_MEANINGS);

const SIMPLE_EXIT_CODES = exitCodes(SIMPLE_EXIT_MEANINGS);

const ENVIRONMENT = section("Environment", [
  row("BATCHD_URL", "the server, such as http://127.0.0.1:8080; --url wins"),
  row("BATCHD_API_KEY", "the key for it"),
  row("OPENAI_BASE_URL", "the server where BATCHD_URL is not set"),
  row("OPENAI_API_KEY", "the key for OPENAI_BASE_URL and api.openai.com; no other server gets it"),
  row("NO_COLOR", "set to anything: no colours"),
]);

interface HelpText {
  /** Commands to paste, each with what it does. */
  readonly examples: readonly (readonly [command: string, purpose: string])[];
  /** Whether the exit code says how the batch has ended. */
  readonly waits?: boolean;
  /** Whether the command talks to a server. */
  readonly asksServer?: boolean;
  /** The meaning of each exit code, where those of clients do not fit. */
  readonly exitCodes?: typeof EXIT_MEANINGS;
  readonly more?: string;
}

const codesOf = ({ waits = false }: HelpText) => (waits ? EXIT_CODES : SIMPLE_EXIT_CODES);

/** Adds what a manual page has below the options. */
export function addManual(command: Command, help: HelpText): Command {
  const { examples, asksServer = true, more } = help;
  const shown = examples.map(([line, purpose]) => `  ${line}\n      ${purpose}`);
  return command.addHelpText(
    "after",
    [
      ...(more === undefined ? [] : [`\n${more}`]),
      section("Examples", shown),
      help.exitCodes !== undefined ? exitCodes(help.exitCodes) : codesOf(help),
      ...(asksServer ? [ENVIRONMENT] : []),
    ].join("\n"),
  );
}
