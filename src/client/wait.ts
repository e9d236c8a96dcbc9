/** Waits for a batch, and ends with the exit code that its end asks for. */
import { isFinal } from "../batch/status.ts";
import type { ResultFormat } from "../contract/results.ts";
import { printable } from "../printable.ts";
import { note, sayJson } from "../terminal/lines.ts";
import { EXIT, exitCodeOf } from "./exit-codes.ts";
import { CommandFailure } from "./failure.ts";
import { followBatch } from "./follow.ts";
import { usualFormat } from "./options.ts";
import { assertNotTooLong, assertReadable, assertWritable, errorsPathOf } from "./output.ts";
import { jsonView, openView } from "./progress.ts";
import { writeBoth, writeResults } from "./results.ts";
import { isGone, isPassing, type Server } from "./server.ts";
import type { Session } from "./session.ts";
import {
  costOf,
  failureLines,
  faultLines,
  isOfBatchd,
  progressOf,
  type ShownBatch,
  statusText,
} from "./shown-batch.ts";

export interface WaitFlags {
  readonly wait?: boolean;
  readonly output?: string;
  readonly format: ResultFormat;
  readonly json?: boolean;
}

/** Refuses what would fail only after the wait, and what would not be done at all. */
export async function assertWaitFlags(flags: WaitFlags, ...inputs: string[]): Promise<void> {
  const { output, format, json } = flags;
  if (output === undefined && format !== "jsonl")
    throw new CommandFailure(`--format ${format} is for the results: name a file for them with -o`);
  if (output === "-" && json)
    throw new CommandFailure("--json and -o - both write to standard output: name a file with -o");
  assertReadable(format, output);
  await assertWritable(output, inputs);
  // It is written only when lines have failed, and is longer.
  if (output !== undefined && output !== "-") await assertNotTooLong(errorsPathOf(output));
}

/** Resolves to the exit code, after the batch has ended and its results are written. */
export async function waitFor(id: string, flags: WaitFlags, session: Session): Promise<number> {
  const batch = await watch(id, session, flags);
  if (batch === null) return EXIT.interrupted;
  const { output } = flags;
  if (output !== undefined && hasResults(batch)) {
    await writeAnswers(batch, { ...flags, output }, session);
  }
  sayWhatFailed(batch, flags, session.server);
  return exitCodeOf(batch);
}

/** Writes the answers of an ended batch, and the lines that failed. */
export async function writeAnswers(
  batch: ShownBatch,
  { output, format }: { readonly output: string; readonly format: ResultFormat },
  { server, ...writing }: Session,
): Promise<void> {
  const ofPipe = { command: server.command("results", batch.id, "--errors") };
  try {
    await writeBoth(output, { exist: Boolean(batch.error_file_id), ofPipe }, (kind, to) =>
      writeResults(server, batch, { ...writing, format, kind, to }),
    );
  } catch (error) {
    // The same command again would send all lines again.
    const later = resultsCommand(batch.id, { output, format }, server);
    note(printable(`The answers stay at the server: ${later}`));
    throw error;
  }
}

/** Says how lines that failed are seen, unless they were written to a file, and how they are run again. */
export function sayWhatFailed(
  batch: ShownBatch,
  { json, output }: Partial<WaitFlags>,
  server: Server,
): void {
  if (json || !isFinal(batch.status) || !batch.request_counts?.failed) return;
  const { id, error_file_id: errors } = batch;
  if (errors && output === undefined)
    note(`To see why lines failed: ${printable(server.command("results", id, "--errors"))}`);
  if (isOfBatchd(batch)) note(`To run them again: ${printable(server.command("retry", id))}`);
}

export const hasResults = ({ status, output_file_id: output, error_file_id: errors }: ShownBatch) =>
  isFinal(status) && (status !== "failed" || Boolean(output ?? errors));

/** Shows the batch until it ends; resolves to null after Ctrl-C, when it has said how to go on. */
export async function watch(
  id: string,
  { server, clock, signal }: Session,
  flags: Partial<WaitFlags>,
): Promise<ShownBatch | null> {
  const isJson = flags.json === true;
  let isThere = false;
  const batch = await followBatch({
    // The loop has tries of its own, and shows them.
    read: async () => {
      const batch = await server.batch(id, { signal, maxRetries: 0 });
      isThere = true;
      return batch;
    },
    passing: (error) => (isPassing(error) ? server.explain(error) : null),
    view: isJson ? jsonView(sayJson) : openView(clock),
    clock,
    signal,
  }).catch((error: unknown) => {
    // The command that made the batch, given again, would make another one.
    if (isThere && !isGone(error)) note(printable(goesOn(id, flags, server)));
    throw error;
  });
  if (batch === null) note(`\n${printable(goesOn(id, flags, server))}`);
  else if (!isJson) sayEnd(batch, server, flags);
  return batch;
}

const goesOn = (id: string, flags: Partial<WaitFlags>, server: Server) =>
  `${id} goes on. To watch it again: ${commandsAfter(id, flags, server)}`;

/** Returns what does the rest of a wait that was interrupted. A batch with failed lines has results, too. */
function commandsAfter(id: string, { output, format }: Partial<WaitFlags>, server: Server): string {
  const watching = server.command("watch", id);
  if (output === undefined) return watching;
  return `${watching}; ${resultsCommand(id, { output, format }, server)}`;
}

function resultsCommand(
  id: string,
  { output, format }: { readonly output: string; readonly format: ResultFormat | undefined },
  server: Server,
): string {
  const usual = format === undefined || format === usualFormat(output);
  return server.command("results", id, "-o", output, ...(usual ? [] : ["--format", format]));
}

/** Says how a batch has ended. A run without a server has no other command that goes on with its batch. */
export function sayEnd(
  batch: ShownBatch,
  server: Server | null,
  flags: Partial<WaitFlags> = {},
): void {
  const cost = costOf(batch);
  const pause = batch.x_batchd?.paused;
  const state = pause ? printable(`paused (${pause.reason})`) : statusText(batch, process.stderr);
  note(
    `${printable(batch.id)} ${state}: ${progressOf(batch)}${cost === null ? "" : `, ${printable(cost)}`}`,
  );
  for (const line of [...failureLines(batch), ...faultLines(batch)]) note(printable(line));
  if (server === null || isFinal(batch.status)) return;
  const budget = batch.x_batchd?.paused?.reason === "budget" ? ["--budget", "MORE"] : [];
  const resuming = server.command("resume", batch.id, ...budget);
  const rest = flags.output === undefined ? "" : `; ${commandsAfter(batch.id, flags, server)}`;
  note(printable(`To go on: ${resuming}${rest}`));
}
