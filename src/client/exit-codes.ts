/** The exit codes of the commands for clients. Scripts rely on them: docs/command.md and every help text list them. */
import { isFinal } from "../batch/status.ts";
import type { ShownBatch } from "./shown-batch.ts";

export const EXIT = {
  done: 0,
  error: 1,
  someLinesFailed: 3,
  failed: 4,
  endedEarly: 5,
  paused: 6,
  interrupted: 130,
} as const;

/** The meaning of each exit code, in the words of the help. */
export const EXIT_MEANINGS: readonly (readonly [code: number, meaning: string])[] = [
  [EXIT.done, "done: every line was answered, or the command did what it was asked to"],
  [EXIT.error, "the command could not do it: wrong options, no connection, a refusal, a full disk"],
  [EXIT.someLinesFailed, "done, and some lines failed"],
  [EXIT.failed, "the batch failed, most often because its input file has faults"],
  [EXIT.endedEarly, "the batch expired or was cancelled"],
  [EXIT.paused, "the batch is paused after its sample, or at its budget, and waits for resume"],
  [EXIT.interrupted, "Ctrl-C; a batch at a server goes on without the command"],
];

/** The meanings for a command that waits for no batch. */
export const SIMPLE_EXIT_MEANINGS: typeof EXIT_MEANINGS = [
  [EXIT.done, "the command did what it was asked to"],
  ...EXIT_MEANINGS.filter(([code]) => code === EXIT.error),
  [EXIT.interrupted, "Ctrl-C"],
];

/** Returns the exit code for a command that waited for this batch. */
export function exitCodeOf(batch: ShownBatch): number {
  if (!isFinal(batch.status)) return EXIT.paused;
  if (batch.status === "failed") return EXIT.failed;
  if (batch.status !== "completed") return EXIT.endedEarly;
  return (batch.request_counts?.failed ?? 0) > 0 ? EXIT.someLinesFailed : EXIT.done;
}
