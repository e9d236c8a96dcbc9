/**
 * Reads the content of an input file, unpacked if it is packed with gzip or zstd: the commands look at the lines that the
 * server will see.
 */
import { createReadStream } from "node:fs";
import { NotUnpackable, peekAtPacking, unpacked } from "../formats/unpacking.ts";
import { CommandFailure } from "./failure.ts";

const PIECE_BYTES = 256 * 1024;

export async function* contentOf(path: string): AsyncGenerator<Buffer> {
  const { content, packing } = await peekAtPacking(fileContent(path));
  try {
    yield* packing === null ? content : unpacked(content, packing, Number.POSITIVE_INFINITY);
  } catch (cause) {
    if (!(cause instanceof NotUnpackable)) throw cause;
    throw new CommandFailure(`cannot read ${path}: ${cause.message}`, { cause });
  }
}

export async function isPacked(path: string): Promise<boolean> {
  const { content, packing } = await peekAtPacking(fileContent(path));
  for await (const _ of content) break;
  return packing !== null;
}

const fileContent = (path: string): AsyncIterable<Buffer> =>
  createReadStream(path, { highWaterMark: PIECE_BYTES });
