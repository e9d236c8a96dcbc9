/**
 * Unpacks gzip and zstd as they stream. zlib works on threads of its own, and the reader sets the pace, so a file that
 * unpacks to terabytes takes no more memory than any other until the limit on its size ends it.
 *
 * The first bytes decide. No UTF-8 text begins with those of either format, so nothing that a batch could use is mistaken.
 */
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { constants, createGunzip, createZstdDecompress } from "node:zlib";
import { timeForMore } from "../resources/time-slice.ts";
import { NotZstd, ZstdFrames } from "./zstd-frames.ts";

/** The window, in powers of two, that all usual levels of zstd stay within: 8 MiB. A larger one would take more memory. */
const MAX_WINDOW_LOG = 23;

/** `windowBytes` is the most of what has been unpacked that stays in memory, because what follows may refer to it. */
const PACKINGS = [
  {
    name: "gzip",
    magic: Buffer.from([0x1f, 0x8b]),
    suffix: /\.gz$/i,
    windowBytes: 32 * 1024,
  },
  {
    name: "zstd",
    magic: Buffer.from([0x28, 0xb5, 0x2f, 0xfd]),
    suffix: /\.zst$/i,
    windowBytes: 2 ** MAX_WINDOW_LOG,
  },
] as const;

export type Packing = (typeof PACKINGS)[number];

/** A packed content is damaged or too large. The message is for the user who sent it. */
export class NotUnpackable extends Error {
  override readonly name = "NotUnpackable";
}

const LONGEST_MAGIC = 4;
const CHUNK_BYTES = 64 * 1024;

/**
 * Each frame of zstd costs some 40 µs of processor time, however small it is, and one that is skipped 1 µs: 200 MB of frames
 * of nothing would take a quarter of an hour. A file may have a frame for each 2,000 bytes of the largest file.
 */
const FRAME_BYTES = 2_000;
const MIN_FRAMES = 1_000;

export interface Peeked {
  /** The whole content, its beginning included. */
  readonly content: AsyncIterable<Buffer>;
  /** It is null for content that is not packed. */
  readonly packing: Packing | null;
}

/** Reads the first bytes of a content, to find how it is packed. */
export async function peekAtPacking(content: AsyncIterable<Buffer>): Promise<Peeked> {
  const source = content[Symbol.asyncIterator]();
  const head: Buffer[] = [];
  let bytes = 0;
  while (bytes < LONGEST_MAGIC) {
    const next = await source.next();
    if (next.done === true) break;
    head.push(next.value);
    bytes += next.value.length;
  }
  const begin = Buffer.concat(head);
  const packing = PACKINGS.find(({ magic }) => begin.subarray(0, magic.length).equals(magic));
  return { content: withHead(begin, source), packing: packing ?? null };
}

async function* withHead(head: Buffer, source: AsyncIterator<Buffer>): AsyncGenerator<Buffer> {
  try {
    if (head.length > 0) yield head;
    for (;;) {
      const next = await source.next();
      if (next.done === true) return;
      yield next.value;
    }
  } finally {
    await source.return?.();
  }
}

export const hasPackedName = (filename: string): boolean =>
  PACKINGS.some(({ suffix }) => suffix.test(filename));

/** Returns the name of the content: `in.jsonl` for `in.jsonl.gz`. */
export const unpackedName = (filename: string, { suffix }: Packing): string =>
  filename.replace(suffix, "") || filename;

/** Yields the unpacked content. Throws {@link NotUnpackable} when it is damaged, or cut off, or followed by something else. */
export async function* unpacked(
  content: AsyncIterable<Buffer>,
  { name }: Packing,
  maxPackedBytes: number,
): AsyncGenerator<Buffer> {
  const unpacker = name === "gzip" ? gunzip() : unzstd();
  const bounded = upTo(maxPackedBytes, content, name);
  const maxFrames = MIN_FRAMES + Math.floor(maxPackedBytes / FRAME_BYTES);
  const source = Readable.from(name === "gzip" ? bounded : framesOf(bounded, maxFrames), {
    objectMode: false,
  });
  const piped = pipeline(source, unpacker);
  // The reader below gets the same error.
  piped.catch(() => {});
  try {
    for await (const piece of unpacker as AsyncIterable<Buffer>) yield piece;
    await piped;
  } catch (cause) {
    throw isOfZlib(cause) ? damaged(name, cause) : cause;
  } finally {
    unpacker.destroy();
    await piped.catch(() => {});
  }
}

const gunzip = () => createGunzip({ chunkSize: CHUNK_BYTES });
const unzstd = () =>
  createZstdDecompress({
    chunkSize: CHUNK_BYTES,
    params: { [constants.ZSTD_d_windowLogMax]: MAX_WINDOW_LOG },
  });

/** Packed bytes that unpack to nothing must have an end, too. */
async function* upTo(
  maxBytes: number,
  content: AsyncIterable<Buffer>,
  name: string,
): AsyncGenerator<Buffer> {
  let bytes = 0;
  for await (const piece of content) {
    bytes += piece.length;
    if (bytes > maxBytes) {
      throw new NotUnpackable(
        `The ${name} file is too large. It may have at most ${maxBytes} bytes, packed or unpacked.`,
      );
    }
    yield piece;
  }
}

async function* framesOf(
  content: AsyncIterable<Buffer>,
  maxFrames: number,
): AsyncGenerator<Buffer> {
  const frames = new ZstdFrames();
  for await (const piece of content) {
    // A piece may have 20,000 blocks of nothing, or 8,000 frames that are skipped.
    await timeForMore();
    for (const part of frames.push(piece)) {
      const pause = timeForMore();
      if (pause !== null) await pause;
      yield part;
    }
    if (frames.count > maxFrames) {
      throw new NotUnpackable(`The zstd file has too many frames: more than ${maxFrames}.`);
    }
  }
  frames.end();
}

/** The stream closes early when gunzip is done before the content is: then bytes follow that are not gzip. */
const OF_ZLIB = /^(?:Z_|ZSTD_|ERR_ZLIB|ERR_STREAM_PREMATURE_CLOSE)/;

const isOfZlib = (error: unknown): error is Error =>
  error instanceof NotZstd ||
  (error instanceof Error && OF_ZLIB.test(String((error as NodeJS.ErrnoException).code)));

const damaged = (name: string, cause: Error) =>
  new NotUnpackable(
    `The ${name} file cannot be unpacked: it is damaged, incomplete, or followed by other bytes (${cause.message}).`,
    { cause },
  );
