/**
 * Counts the memory that an upload takes while it is stored. A folder takes each piece at once, but a bucket takes parts of
 * some megabytes, and a hundred uploads at a time would hold a hundred times as much. zstd holds up to 8 MiB of what it unpacks,
 * and 300 bytes may unpack to so much. Without room the server reads nothing more from the client, and after some seconds it asks
 * the client to come back. Each piece also takes some 300 bytes as an object, and a client may send each byte in a packet of its
 * own, so short pieces are stored together.
 */

import type { Clock } from "../clock.ts";
import type { Room } from "../resources/memory-budget.ts";
import { Gathered } from "../text/gathered.ts";
import { freeInTime } from "./room-wait.ts";

/** Shorter pieces are joined, up to as many bytes as most pieces have. */
const SHORT_BYTES = 4 * 1024;
const JOINED_BYTES = 64 * 1024;

interface Counting {
  /** The most bytes that are in memory at a time. */
  readonly maxBytes: number;
  readonly clock: Clock;
}

export async function* countedIn(
  room: Room,
  source: AsyncIterable<Buffer>,
  { maxBytes, clock }: Counting,
): AsyncGenerator<Buffer, void> {
  for await (const piece of withoutShortPieces(source)) {
    const heldBytes = Math.min(piece.length, maxBytes - room.bytes);
    const free = heldBytes > 0 ? room.add(heldBytes) : null;
    yield piece;
    if (free !== null) await freeInTime(free, { room, what: "uploads", clock });
  }
}

async function* withoutShortPieces(source: AsyncIterable<Buffer>): AsyncGenerator<Buffer, void> {
  const gathered = new Gathered();
  for await (const piece of source) {
    if (gathered.length === 0 && piece.length >= SHORT_BYTES) {
      yield piece;
      continue;
    }
    gathered.add(piece);
    if (gathered.length >= JOINED_BYTES) yield gathered.take();
  }
  if (gathered.length > 0) yield gathered.take();
}
