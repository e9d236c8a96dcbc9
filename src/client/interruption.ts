/** Ends a command before its work is done: by a failure in words, by Ctrl-C, or because its reader has left. */

import { complain } from "../terminal/lines.ts";
import { isReaderGone } from "../terminal/standard-streams.ts";
import { EXIT } from "./exit-codes.ts";
import { CommandFailure } from "./failure.ts";

/**
 * Returns a signal that aborts at the first Ctrl-C or SIGTERM; a second one ends the process at once. It also aborts when
 * the reader of standard output has left, with the error of the write as its reason.
 */
export function interruption(): AbortSignal {
  const controller = new AbortController();
  for (const name of ["SIGINT", "SIGTERM"] as const) {
    process.once(name, () => controller.abort());
  }
  process.stdout.on("error", (error) => {
    if (isReaderGone(error)) controller.abort(error);
  });
  return controller.signal;
}

interface Act {
  readonly act: () => Promise<number>;
  /** Returns a sentence for an error; null for a bug, whose stack matters. */
  readonly explain?: (error: unknown) => string | null;
  readonly signal: AbortSignal;
}

/** Resolves to the exit code of a command, and puts its failure into words. */
export async function explained({ act, explain = () => null, signal }: Act): Promise<number> {
  try {
    return await act();
  } catch (error) {
    if (signal.aborted && isReaderGone(signal.reason)) return EXIT.done;
    const text = error instanceof CommandFailure ? error.message : explain(error);
    if (text === null && !signal.aborted) throw error;
    complain(text ?? "interrupted");
    return signal.aborted ? EXIT.interrupted : EXIT.error;
  }
}
