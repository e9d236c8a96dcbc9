/** What a command leaves at a server that has made no batch, or another one than the user wants. */
import { APIError } from "openai";
import { printable } from "../printable.ts";
import { complain, note } from "../terminal/lines.ts";
import { CommandFailure } from "./failure.ts";
import { type GivenOption, isOptionOf } from "./given-options.ts";
import type { Server } from "./server.ts";

/** The server has made a batch, and has ignored what makes it the one that the user wants. */
class OptionIgnored extends CommandFailure {}

/** A batch without its sample, budget or source may cost far more than the user wants. */
export async function cancelIgnorant(server: Server, id: string, what: string): Promise<never> {
  const isCancelled = await server.openai.batches.cancel(id).then(
    () => true,
    () => false,
  );
  throw new OptionIgnored(
    `${server.url} has ignored ${what}, which only batchd knows; ${id} ${isCancelled ? "is cancelled" : "could not be cancelled any more"}`,
  );
}

/** A command that makes a batch of the file, without its options and with them. */
interface Again {
  readonly words: readonly string[];
  readonly options: readonly GivenOption[];
}

interface Uploaded {
  readonly fileId: string;
  /** The command for the file; null where the same one as before makes a batch of it. */
  readonly again: Again | null;
}

/** A large file was perhaps uploaded for an hour, so it is not thrown away because of one option. */
export function sayWhatStays({ fileId, again }: Uploaded, error: unknown, server: Server): void {
  const stays = `the input file stays at the server as ${fileId}`;
  if (error instanceof OptionIgnored) complain(stays);
  else if (isRefusal(error)) complain(`no batch was made, and ${stays}`);
  else complain(`${perhapsMade(server)}, and ${stays}`);
  if (again !== null) sayAgain(again, refusedParam(error), server);
  note(`To delete it: ${printable(server.command("files", "delete", fileId))}`);
}

/** Says of a batch without an upload that the answer to its creation was lost: given again, the command would pay twice. */
export function sayPerhapsMade(error: unknown, server: Server): void {
  if (error instanceof OptionIgnored || isRefusal(error)) return;
  complain(perhapsMade(server));
}

const perhapsMade = (server: Server) =>
  printable(`a batch may have been made, which ${server.command("list")} shows`);

/** A refused option would be refused again. What it did may matter, as a budget does, so this says that it is left out. */
function sayAgain({ words, options }: Again, param: string | null, server: Server): void {
  const isRefused = (option: GivenOption) => param !== null && isOptionOf(option, param);
  const kept = options.filter((option) => !isRefused(option)).flatMap((option) => option.words);
  const left = options.filter(isRefused).map((option) => option.words.join(" "));
  const without = left.length === 0 ? "" : ` without ${left.join(", ")}`;
  note(printable(`To make a batch of it${without}: ${server.command(...words, ...kept)}`));
}

const causeOf = (error: unknown) => (error instanceof CommandFailure ? error.cause : error);

/** Whether the server has answered that it makes no batch. An answer that was lost may be of a batch. */
function isRefusal(error: unknown): boolean {
  const cause = causeOf(error);
  return cause instanceof APIError && cause.status !== undefined && cause.status < 500;
}

/** The parameter that was refused; null where the server names none. */
function refusedParam(error: unknown): string | null {
  if (error instanceof OptionIgnored) return "x_batchd";
  const cause = causeOf(error);
  return (cause instanceof APIError && cause.param) || null;
}
