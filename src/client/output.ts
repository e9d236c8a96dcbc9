/**
 * Writes results to a file or to standard output. A file is complete or not there: the bytes go to a temporary name
 * beside it, are synced, and get its name at the end.
 */
import { randomBytes } from "node:crypto";
import { createWriteStream, fstatSync } from "node:fs";
import { access, constants, open, realpath, rename, rm, stat } from "node:fs/promises";
import { basename, dirname, join, resolve, sep } from "node:path";
import { type Readable, Transform, type Writable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { StringDecoder } from "node:string_decoder";
import type { ResultFormat } from "../contract/results.ts";
import { printableLines } from "../printable.ts";
import { cannotWrite, isReaderGone } from "../terminal/standard-streams.ts";
import { isOutputTerminal } from "../terminal/terminal.ts";
import { CommandFailure } from "./failure.ts";

/**
 * Refuses a path that cannot be written, before hours of work have gone by, and one at which the answers would replace
 * what the command reads.
 */
export async function assertWritable(
  path: string | undefined,
  inputs: readonly string[] = [],
): Promise<void> {
  if (path === undefined || path === "-") return;
  for (const written of [path, errorsPathOf(path)]) {
    for (const input of inputs) {
      if (!(await isSameFile(written, input))) continue;
      throw new CommandFailure(`${written} is an input; name another file for the answers with -o`);
    }
  }
  const found = await stat(path).catch(() => null);
  const isFolder = found === null ? path.endsWith(sep) : found.isDirectory();
  if (isFolder) throw new CommandFailure(`${path} is a folder; name a file in it`);
  // A pipe or a device is written as it is.
  if (found !== null && !found.isFile()) return;
  await assertNotTooLong(path);
  const folder = dirname(resolve(path));
  // The separator at the end lets a file in its place fail.
  await access(join(folder, sep), constants.W_OK).catch((cause: NodeJS.ErrnoException) => {
    throw new CommandFailure(`cannot write to the folder ${folder}: ${cause.message}`, { cause });
  });
}

/** Only the file system knows how long a name may be. */
export async function assertNotTooLong(path: string): Promise<void> {
  await stat(path).catch((cause: NodeJS.ErrnoException) => {
    if (cause.code !== "ENAMETOOLONG") return;
    const said = `the name ${basename(path)} is too long: name a shorter one with -o`;
    throw new CommandFailure(said, { cause });
  });
}

/** Refuses to write a format that is no text to a terminal, which would show its bytes as signs without a meaning. */
export function assertReadable(format: ResultFormat, path: string | undefined): void {
  const isShown = (path === undefined || path === "-") && isOutputTerminal();
  if (format !== "parquet" || !isShown) return;
  throw new CommandFailure("Parquet is no text for a terminal: name a file with -o, or use > or |");
}

async function isSameFile(path: string, input: string): Promise<boolean> {
  const one = await stat(path).catch(() => null);
  const two = input === "-" ? standardInput() : await stat(input).catch(() => null);
  return Boolean(one?.isFile() && one.dev === two?.dev && one.ino === two?.ino);
}

/** Standard input may be a file, as in `batchd submit - < input.jsonl`. */
function standardInput() {
  try {
    return fstatSync(process.stdin.fd);
  } catch {
    return null;
  }
}

/** Returns the name beside `path` for the lines that failed: `answers.errors.jsonl` for `answers.jsonl`. */
export const errorsPathOf = (path: string): string =>
  /\.(?:jsonl|csv|parquet)$/.test(path) ? path.replace(/\.(\w+)$/, ".errors.$1") : `${path}.errors`;

/** Whether the results get a file of that name. Standard output, a pipe and a device are none. */
export async function isFileName(path: string): Promise<boolean> {
  if (path === "-") return false;
  const found = await stat(path).catch(() => null);
  return found === null || found.isFile();
}

/** Writes the bytes of `source` to the file, or to standard output for `-` and no path. */
export async function writeOutput(source: Readable, path: string | undefined): Promise<void> {
  if (path === undefined || path === "-") {
    await writeStandardOutput(source);
    return;
  }
  await writePath(source, path).catch((error: NodeJS.ErrnoException) => {
    if (!WRITES.includes(error.syscall)) throw error;
    throw new CommandFailure(`cannot write ${path}: ${error.message}`, { cause: error });
  });
}

/** The calls of the system that fail where a file cannot be written. Those of a broken download are others. */
const WRITES: readonly unknown[] = ["open", "write", "fsync", "close", "rename"];

async function writePath(source: Readable, path: string): Promise<void> {
  // A pipe or a device keeps its name.
  if (!(await isFileName(path))) {
    await pipeline(source, createWriteStream(path)).catch(unlessReaderGone);
    return;
  }
  const found = await stat(path).catch(() => null);
  const target = found === null ? resolve(path) : await realpath(path);
  const temporary = join(dirname(target), temporaryNameFor(basename(target)));
  // A file that only its owner may read is replaced by one like it.
  const mode = found === null ? 0o666 : found.mode & 0o666;
  try {
    await pipeline(source, createWriteStream(temporary, { flush: true, mode }));
    await rename(temporary, target);
    await syncFolder(dirname(target));
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
}

/**
 * The longest name that a file system takes has no room for more. A character has four bytes at the most. The process has the
 * same number as those of other containers that write beside it.
 */
const temporaryNameFor = (name: string): string =>
  `${[...name].slice(0, 50).join("")}.${randomBytes(8).toString("hex")}.part`;

async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, "r").catch(() => null);
  // Some file systems cannot sync a folder. The file is there anyway.
  await folder?.sync().catch(() => {});
  await folder?.close();
}

async function writeStandardOutput(source: Readable): Promise<void> {
  const write = async (pieces: AsyncIterable<Buffer | string>) => {
    for await (const piece of pieces) await writePiece(process.stdout, piece);
  };
  try {
    if (isOutputTerminal()) await pipeline(source, escaping(), write);
    else await pipeline(source, write);
  } catch (error) {
    unlessReaderGone(error);
  }
}

/** Throws an error, unless it says that a reader such as `head` has seen enough and left. */
function unlessReaderGone(error: unknown): void {
  if (!isReaderGone(error)) throw error;
}

async function writePiece(stream: Writable, piece: Buffer | string): Promise<void> {
  await new Promise<void>((done, fail) =>
    stream.write(piece, (error) => {
      if (!error) done();
      else fail(isReaderGone(error) ? error : new CommandFailure(cannotWrite(error)));
    }),
  );
}

/** Escapes what a terminal would obey. In JSON, such an escape means the same character. The lines of CSV end in CRLF. */
function escaping(): Transform {
  const decoder = new StringDecoder("utf8");
  const shown = (text: string) => printableLines(text.replaceAll("\r\n", "\n"));
  return new Transform({
    transform: (piece: Buffer, _encoding, done) => done(null, shown(decoder.write(piece))),
    flush: (done) => done(null, shown(decoder.end())),
  });
}
