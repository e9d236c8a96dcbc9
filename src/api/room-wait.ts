/** Waits for memory, and asks the client to come back when there is none. */
import { type Clock, within } from "../clock.ts";
import { PublicError } from "../errors.ts";
import type { Room } from "../resources/memory-budget.ts";

/** A request waits so long for room. */
export const ROOM_WAIT_MS = 10_000;
const RETRY_AFTER_MS = 5_000;

interface Waiting {
  /** What counts towards the room that is full. */
  readonly room: Room;
  readonly what: "uploads" | "answers";
  readonly clock: Clock;
}

/** Waits for room, and throws when there is none after some seconds. */
export async function freeInTime(
  free: Promise<void>,
  { room, what, clock }: Waiting,
): Promise<void> {
  const isFree = await within(clock, ROOM_WAIT_MS, { work: free.then(() => true), late: false });
  if (!isFree) throw noRoomFor(what, room);
}

/** Returns the error of a project that holds too much itself, or of a server that holds too much. */
export function noRoomFor(
  what: "uploads" | "answers" | "requests" | "lines",
  { isOwnersExcess }: Room,
): PublicError {
  const [error, holder] = isOwnersExcess
    ? (["rate_limit_exceeded", "project"] as const)
    : (["unavailable", "server"] as const);
  return new PublicError(
    error,
    `The ${holder} holds as many ${what} in memory as it may. Please try again in some seconds.`,
    { retryAfterMs: RETRY_AFTER_MS },
  );
}
