/**
 * The input file of a command: a path, or `-` for standard input. Standard input is kept in a temporary file first,
 * because an upload may have to be repeated, and the first line is read before the others.
 */
import { createHash } from "node:crypto";
import { createWriteStream } from "node:fs";
import { mkdtemp, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { pipeline } from "node:stream/promises";
import { parseLine, textOf } from "../batch/line.ts";
import { BATCH_ENDPOINTS, type BatchEndpoint } from "../contract/batch.ts";
import { note } from "../terminal/lines.ts";
import { shellPath } from "../words.ts";
import { fileContent, linesIn, MAX_LINE_BYTES, unpackedContent } from "./content.ts";
import { CommandFailure, cannotRead } from "./failure.ts";

export interface InputFile extends AsyncDisposable {
  readonly path: string;
  /** The name that the server gets to know. */
  readonly name: string;
  readonly bytes: number;
}

export async function openInput(path: string, signal: AbortSignal): Promise<InputFile> {
  if (path === "-") {
    if (process.stdin.isTTY) note("Type or paste the lines, then Ctrl-D on a line of its own.");
    return keepInput(process.stdin, "stdin.jsonl", signal);
  }
  const found = await stat(path).catch((cause: Error) => {
    throw cannotRead(path, cause);
  });
  if (!found.isFile()) {
    throw new CommandFailure(`${path} is not a file; - reads standard input`);
  }
  return { path, name: basename(path), bytes: found.size, [Symbol.asyncDispose]: async () => {} };
}

/** Writes an input to a temporary file, which is removed with its folder after its use. */
export async function keepInput(
  content: AsyncIterable<Buffer>,
  name: string,
  signal: AbortSignal,
): Promise<InputFile> {
  const folder = await mkdtemp(join(tmpdir(), "batchd-input-")).catch((cause: Error) => {
    throw cannotKeep(cause);
  });
  const path = join(folder, "input.jsonl");
  const remove = () => rm(folder, { recursive: true, force: true });
  try {
    await pipeline(content, createWriteStream(path, { mode: 0o600 }), { signal });
    const { size: bytes } = await stat(path);
    return { path, name, bytes, [Symbol.asyncDispose]: remove };
  } catch (error) {
    await remove();
    throw error instanceof Error && "syscall" in error && error.syscall === "write"
      ? cannotKeep(error)
      : error;
  }
}

const cannotKeep = (cause: Error): CommandFailure =>
  new CommandFailure(
    `cannot keep the input in ${tmpdir()}: ${cause.message}. TMPDIR names another folder`,
    { cause },
  );

/** Returns the SHA-256 of the input, in hexadecimal. */
export async function digestOf({ path }: InputFile, signal: AbortSignal): Promise<string> {
  const hash = createHash("sha256");
  for await (const piece of fileContent(path, { signal })) hash.update(piece);
  return hash.digest("hex");
}

/** Returns what a message calls the file that the user has named. */
export const nameFor = (file: string): string => (file === "-" ? "standard input" : file);

/** Returns the endpoint of the first line, or says what to do. `file` is the name that the user has given. */
export async function endpointFor(input: InputFile, file: string): Promise<BatchEndpoint> {
  const endpoint = await endpointOf(input.path);
  if (endpoint !== null) return endpoint;
  const name = nameFor(file);
  if (input.bytes === 0) throw new CommandFailure(`${name} is empty`);
  throw new CommandFailure(
    `the first line of ${name} names no endpoint of a batch as its url: batchd validate ${shellPath(file)} says what is wrong, and --endpoint names one`,
  );
}

/** Returns the endpoint that the first line asks for; null if it names none that a batch may have. */
export async function endpointOf(path: string): Promise<BatchEndpoint | null> {
  const lines = linesIn(unpackedContent(path), MAX_LINE_BYTES);
  for await (const { bytes } of lines) return endpointIn(bytes);
  return null;
}

function endpointIn(bytes: Buffer | null): BatchEndpoint | null {
  const line = bytes === null ? null : parseLine(bytes);
  if (bytes === null || line === null) return null;
  const url = textOf(bytes, line.url);
  return BATCH_ENDPOINTS.find((each) => each === url || each === `/v1${url}`) ?? null;
}
