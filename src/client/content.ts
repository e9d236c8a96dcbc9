/**
 * Reads the content of an input file, unpacked if it is packed with gzip or zstd: the commands look at the lines that the
 * server will see.
 */
import { createReadStream } from "node:fs";
import { NotUnpackable, peekAtPacking, unpacked } from "../formats/unpacking.ts";
import { LineSplitter, type SplitLine } from "../text/split.ts";
import { cannotRead } from "./failure.ts";

const PIECE_BYTES = 256 * 1024;

export async function* unpackedContent(path: string): AsyncGenerator<Buffer> {
  const { content, packing } = await peekAtPacking(fileContent(path));
  try {
    yield* packing === null ? content : unpacked(content, packing, Number.POSITIVE_INFINITY);
  } catch (cause) {
    if (!(cause instanceof NotUnpackable)) throw cause;
    throw cannotRead(path, cause);
  }
}

/** The longest line that any server may be configured to take. */
export const MAX_LINE_BYTES = 256 * 1024 * 1024;

/** Yields the lines that are not blank. */
export async function* linesIn(
  content: AsyncIterable<Buffer>,
  maxLineBytes: number,
): AsyncGenerator<SplitLine> {
  const splitter = new LineSplitter(maxLineBytes, { start: 0, firstLine: 1 });
  for await (const piece of content) yield* splitter.push(piece);
  yield* splitter.end();
}

export async function isPacked(path: string): Promise<boolean> {
  const { content, packing } = await peekAtPacking(fileContent(path));
  for await (const _ of content) break;
  return packing !== null;
}

interface Reading {
  readonly start?: number;
  readonly signal?: AbortSignal;
}

/** Yields a file as it is. The error of a read names no file, and says in words of the system alone what went wrong. */
export async function* fileContent(path: string, reading: Reading = {}): AsyncGenerator<Buffer> {
  try {
    yield* createReadStream(path, { highWaterMark: PIECE_BYTES, ...reading });
  } catch (cause) {
    if (!(cause instanceof Error && "syscall" in cause)) throw cause;
    throw cannotRead(path, cause);
  }
}
