/**
 * Counts a long answer in the memory budget until its client has read it. Node takes such an answer as a whole, and a client may
 * read as slowly as it likes, on as many connections as it likes.
 */
import { freeInTime } from "../api/room-wait.ts";
import { whenClosed } from "./connection.ts";
import type { AppContext } from "./context.ts";
import { roomFor } from "./json.ts";

/** A shorter answer is not counted: the system takes it from us at once, unread or not. */
const SHORT_BYTES = 64 * 1024;

/** Counts more bytes of the answer. Returns null when more may follow, else a promise of room for them. */
export type CountBytes = (bytes: number) => Promise<void> | null;

/** Makes an answer that counts its bytes while it grows. */
export async function countedAnswer<Answer>(
  c: AppContext,
  make: (count: CountBytes) => Promise<Answer>,
): Promise<Answer> {
  const room = roomFor(c);
  let shortBytes = 0;
  const count = (bytes: number) => {
    const isShort = shortBytes + bytes <= SHORT_BYTES;
    if (isShort) shortBytes += bytes;
    const free = isShort ? null : room.add(bytes);
    return free === null
      ? null
      : freeInTime(free, { room, what: "answers", clock: c.get("clock") });
  };
  try {
    const answer = await make(count);
    whenClosed(c.env.outgoing, () => room.release());
    return answer;
  } catch (error) {
    room.release();
    throw error;
  }
}
