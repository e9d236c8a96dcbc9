/** Waits for memory, and asks the client to come back when there is none. */
import { type Clock, within } from "../clock.ts";
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
  const isFree = await within(clock, ROOM_WAIT_MS, { work: free.then(() => true), late: false });
  if (!isFree) throw noRoomFor(what);
}

export const noRoomFor = (what: "uploads" | "answers" | "requests" | "lines"): PublicError =>
  new PublicError(
    "unavailable",
    `The server holds as many ${what} in memory as it may. Please try again in some seconds.`,
    { retryAfterMs: RETRY_AFTER_MS },
  );
