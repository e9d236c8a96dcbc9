/** Writes the results of a batch: the finished file, or what there is of a batch that still runs. */
import { rm } from "node:fs/promises";
import { Readable } from "node:stream";
import type { ReadableStream } from "node:stream/web";
import type { ResultKind } from "../batch/finished-line.ts";
import { isFinal } from "../batch/status.ts";
import type { Clock } from "../clock.ts";
import type { ResultFormat, TableFormat } from "../contract/results.ts";
import { NotAResultRow } from "../formats/result-row.ts";
import { printable } from "../printable.ts";
import { complain, note } from "../terminal/lines.ts";
import { assertContent } from "./answer.ts";
import { contentOf } from "./download.ts";
import { CommandFailure } from "./failure.ts";
import { errorsPathOf, isFileName, writeOutput } from "./output.ts";
import { type Server, TIMEOUT_MS } from "./server.ts";
import type { ShownBatch } from "./shown-batch.ts";

export interface Writing {
  readonly format: ResultFormat;
  readonly clock: Clock;
  readonly signal: AbortSignal;
}

/** The last part of the address of the rows so far. */
const PATHS: Readonly<Record<ResultKind, string>> = { output: "output", error: "errors" };

/** Returns the id of a result file; null for one that is not there. */
export const resultFileIdOf = (batch: ShownBatch, kind: ResultKind): string | null =>
  (kind === "output" ? batch.output_file_id : batch.error_file_id) ?? null;

/** Writes one kind of results to the file, or to standard output. */
export async function writeResults(
  server: Server,
  batch: ShownBatch,
  {
    kind,
    to,
    ...writing
  }: Writing & { readonly kind: ResultKind; readonly to: string | undefined },
): Promise<void> {
  const source = isFinal(batch.status)
    ? finishedRows(server, batch, { kind, ...writing })
    : await rowsSoFar(server, batch, kind);
  await writeRows(source, writing.format, to);
}

/** Writes rows of JSON lines in the format. */
export const writeRows = (
  source: Readable,
  format: ResultFormat,
  to: string | undefined,
): Promise<void> => {
  if (format === "jsonl") return writeOutput(source, to);
  return writeOutput(Readable.from(tableOf(source, format), { objectMode: false }), to);
};

/** Converts here and not at the server: this works with any server, and a broken download goes on where it was. */
async function* tableOf(source: Readable, format: TableFormat): AsyncGenerator<Buffer> {
  const { openConversion } = await import("../formats/conversion.ts");
  const conversion = await openConversion(format);
  try {
    for await (const piece of source) yield* conversion.push(piece as Buffer);
    yield* conversion.end();
  } catch (error) {
    if (!(error instanceof NotAResultRow)) throw error;
    throw new CommandFailure(`${error.message}; --format jsonl has it as it is`);
  }
}

function finishedRows(
  server: Server,
  batch: ShownBatch,
  { kind, ...options }: Writing & { readonly kind: ResultKind },
): Readable {
  const fileId = resultFileIdOf(batch, kind);
  return fileId ? contentOf(server, fileId, options) : Readable.from([]);
}

async function rowsSoFar(server: Server, batch: ShownBatch, kind: ResultKind): Promise<Readable> {
  const response = await server.extension("results of a batch that still runs", batch.id, (path) =>
    // The answer begins with the first row, which may be far behind in a large batch.
    server.openai.get(`${path}/${PATHS[kind]}`, { timeout: TIMEOUT_MS }).asResponse(),
  );
  assertContent(response.headers);
  const paused = batch.x_batchd?.paused;
  const state = paused ? `is paused (${paused.reason})` : `still runs (${batch.status})`;
  complain(`${batch.id} ${state}: these are its results so far`);
  return response.body === null
    ? Readable.from([])
    : Readable.fromWeb(response.body as ReadableStream<Uint8Array>);
}

interface Errors {
  readonly exist: boolean;
  /** Where they are written when the answers go to a pipe, or the command that shows them where the server has them. */
  readonly ofPipe: { readonly path: string } | { readonly command: string };
}

/** Writes both kinds of results: the answers to `to`, and beside it the lines that failed, if there are any. */
export async function writeBoth(
  to: string,
  errors: Errors,
  write: (kind: ResultKind, to: string) => Promise<void>,
): Promise<void> {
  await write("output", to);
  // A pipe or a device has nothing beside it, such as /dev/fd/63 of a shell.
  const isFile = await isFileName(to);
  const forErrors = isFile ? { path: errorsPathOf(to) } : errors.ofPipe;
  if ("command" in forErrors) {
    if (errors.exist) complain(`some lines failed; ${forErrors.command} has them`);
    return;
  }
  // The file of an earlier run would be taken for errors of this one.
  if (errors.exist) await write("error", forErrors.path);
  else await rm(forErrors.path, { force: true });
  const places = [
    ...(isFile ? [`answers are in ${to}`] : []),
    ...(errors.exist ? [`failed lines${isFile ? "" : " are"} in ${forErrors.path}`] : []),
  ];
  if (places.length > 0) note(printable(places.join(", and ")));
}
