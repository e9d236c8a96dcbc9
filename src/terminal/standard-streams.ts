/**
 * Writes to the standard output and the standard error of a command. The reader of a pipe may be slow, or leave early
 * as `head` does, and behind a stream may be a file on a full disk. Everything is written before the process ends, and
 * output that is lost although its reader wants it is a failure of the command.
 */
import { once } from "node:events";
import { fstatSync, writeSync } from "node:fs";
import { complainInLines, FAILED } from "./output.ts";

/** The codes of a write after the reader has left. */
const READER_GONE: readonly unknown[] = ["EPIPE", "ERR_STREAM_DESTROYED"];

export const isReaderGone = (error: unknown): boolean =>
  error instanceof Error && READER_GONE.includes((error as NodeJS.ErrnoException).code);

export interface StandardStreams {
  /**
   * Resolves to the exit code of the process once both readers have everything, or `patience` is over. Without it, a slow
   * reader has all the time that it wants.
   */
  finish(exitCode: number, patience?: Promise<void>): Promise<number>;
}

/** Watches both streams. A failed write must not end the process with a stack. */
export function watchStandardStreams(): StandardStreams {
  let lost: Error | null = null;
  const { stdout, stderr } = process;
  stdout.on("error", (error) => {
    if (!isReaderGone(error)) lost ??= error;
  });
  stderr.on("error", () => {});
  for (const stream of [stdout, stderr]) writeWholePieces(stream);
  const finish = async (exitCode: number) => {
    await written(stdout);
    // A command that has failed has said why.
    if (lost !== null && exitCode !== FAILED) complainInLines(cannotWrite(lost));
    await written(stderr);
    return lost === null ? exitCode : FAILED;
  };
  return {
    finish: (exitCode, patience) =>
      patience === undefined
        ? finish(exitCode)
        : Promise.race([finish(exitCode), patience.then(() => exitCode)]),
  };
}

/** The output that may wait for its reader. */
const MAX_WAITING_BYTES = 256 * 1024;

/**
 * Resolves when a slow reader has taken the output so far, when it is lost, or when the signal aborts. Returns null where little
 * waits. Without this a long output would gather in memory, behind a pager as a whole.
 */
export function outputTaken(signal: AbortSignal): Promise<unknown> | null {
  const { stdout } = process;
  if (stdout.writableLength < MAX_WAITING_BYTES || !stdout.writableNeedDrain) return null;
  return once(stdout, "drain", { signal }).catch(() => {});
}

export const cannotWrite = ({ message }: Error): string =>
  `cannot write to standard output: ${message}`;

/**
 * Lets writes to a terminal wait in memory. Node.js waits for a terminal in each write, and Ctrl-S or a connection that
 * hangs stops a terminal: an engine in this process would stop with it.
 */
export function neverWaitForTerminals(): void {
  for (const stream of [process.stdout, process.stderr]) {
    if (stream.isTTY) (stream as unknown as Terminal)._handle?.setBlocking(false);
  }
}

interface Terminal {
  readonly _handle?: { setBlocking(isBlocking: boolean): void };
}

const LINE_BREAK = Buffer.from("\n");

/**
 * A disk that is nearly full takes a part of a piece. Node.js would drop the other part without an error. What comes once
 * there is room again begins on a line of its own, so that it can be read.
 */
function writeWholePieces(stream: NodeJS.WriteStream & { readonly fd: number }): void {
  if (!fstatSync(stream.fd).isFile()) return;
  let isTorn = false;
  stream._write = (piece: Buffer, _encoding, done) => {
    const bytes = isTorn ? Buffer.concat([LINE_BREAK, piece]) : piece;
    let count = 0;
    try {
      while (count < bytes.length) count += writeSync(stream.fd, bytes, count);
      isTorn = false;
    } catch (error) {
      if (count > 0) isTorn = bytes[count - 1] !== LINE_BREAK[0];
      done(error as Error);
      return;
    }
    done();
  };
}

const written = (stream: NodeJS.WriteStream): Promise<void> =>
  new Promise((resolve) => {
    stream.write("", () => resolve());
  });
