/** What a command leaves at a server that has made no batch, or another one than the user wants. */
import { APIError } from "openai";
import { printable } from "../printable.ts";
import { complain, note } from "../terminal/lines.ts";
import { CommandFailure } from "./failure.ts";
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

interface Uploaded {
  readonly fileId: string;
  /** The command that makes a batch of the file; null where the same command does. */
  readonly again: string | null;
}

/** A large file was perhaps uploaded for an hour, so it is not thrown away because of one option. */
export function sayWhatStays({ fileId, again }: Uploaded, error: unknown, server: Server): void {
  const stays = `the input file stays at the server as ${fileId}`;
  if (error instanceof OptionIgnored) complain(stays);
  else if (isRefusal(error)) complain(`no batch was made, and ${stays}`);
  else complain(`a batch may have been made, which batchd list shows, and ${stays}`);
  if (again !== null) note(`To make a batch of it: ${printable(again)}`);
  note(`To delete it: ${printable(server.command("files", "delete", fileId))}`);
}

/** Whether the server has answered that it makes no batch. An answer that was lost may be of a batch. */
function isRefusal(error: unknown): boolean {
  const cause = error instanceof CommandFailure ? error.cause : error;
  return cause instanceof APIError && cause.status !== undefined && cause.status < 500;
}
