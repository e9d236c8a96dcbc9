/** Waits for memory, and asks the client to come back when there is none. */
import { type Clock, sleep } from "../clock.ts";
import { PublicError } from "../errors.ts";

/** A request waits so long for room. */
export const ROOM_WAIT_MS = 10_000;
const RETRY_AFTER_MS = 5_000;

/** Waits for room for `what`, and throws when there is none after some seconds. */
export async function freeInTime(
  free: Promise<void>,
  clock: Clock,
  what: "uploads" | "answers",
): Promise<void> {
  const waiting = new AbortController();
  const isFree = await Promise.race([
    free.then(() => true),
    sleep(clock, ROOM_WAIT_MS, waiting.signal).then(() => false),
  ]);
  waiting.abort("free");
  if (isFree) return;
  throw noRoomFor(what);
}

export const noRoomFor = (what: "uploads" | "answers" | "requests" | "lines"): PublicError =>
  new PublicError(
    "unavailable",
    `The server holds as many ${what} in memory as it may. Please try again in some seconds.`,
    { retryAfterMs: RETRY_AFTER_MS },
  );
