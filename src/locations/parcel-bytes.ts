/** Reads the files of a parcel for adapters, and compares their bytes with what the parcel says of them. */
import { createHash } from "node:crypto";
import { LocationError, type ParcelFile } from "./location.ts";

/**
 * Reads a file, and compares its bytes with what the parcel says at the end. An adapter must not publish the file before the
 * iteration has ended.
 */
export async function* checkedBytes(file: ParcelFile): AsyncGenerator<Buffer> {
  const { name, bytes, sha256 } = file;
  const hash = createHash("sha256");
  let readBytes = 0;
  for await (const chunk of file.open()) {
    hash.update(chunk);
    readBytes += chunk.length;
    if (readBytes > bytes) break;
    yield chunk;
  }
  if (readBytes !== bytes || hash.digest("hex") !== sha256) {
    throw new LocationError("unavailable", `${name} was not read as it was written`);
  }
}

/** Whether the content is the file. It is read no further than the file goes. */
export async function isContentOf(
  { bytes, sha256 }: ParcelFile,
  content: AsyncIterable<Buffer>,
): Promise<boolean> {
  const hash = createHash("sha256");
  let readBytes = 0;
  for await (const chunk of content) {
    hash.update(chunk);
    readBytes += chunk.length;
    if (readBytes > bytes) return false;
  }
  return readBytes === bytes && hash.digest("hex") === sha256;
}

/** Yields the file in pieces of this size. The last one may be smaller, and a file without a byte has one without any. */
export async function* piecesOf(file: ParcelFile, pieceBytes: number): AsyncGenerator<Buffer> {
  const roomBytes = Math.min(pieceBytes, file.bytes);
  let piece = Buffer.allocUnsafe(roomBytes);
  let filled = 0;
  for await (const chunk of checkedBytes(file)) {
    for (let at = 0; at < chunk.length; ) {
      const copied = chunk.copy(piece, filled, at);
      at += copied;
      filled += copied;
      if (filled < pieceBytes) continue;
      yield piece;
      piece = Buffer.allocUnsafe(roomBytes);
      filled = 0;
    }
  }
  if (filled > 0 || file.bytes === 0) yield piece.subarray(0, filled);
}

/** Yields the content until the signal aborts, and throws its reason then. */
export async function* untilAborted(
  content: AsyncIterable<Buffer>,
  signal: AbortSignal,
): AsyncGenerator<Buffer> {
  for await (const chunk of content) {
    signal.throwIfAborted();
    yield chunk;
  }
}
