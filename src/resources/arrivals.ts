/**
 * Lets connections of clients in while there is long work. Node accepts one in each turn of the event loop, and those behind it
 * wait in the kernel: with turns of 15 ms, a client waited for seconds behind hundreds that another one opened at once. A turn
 * in which a connection has come is therefore left to connections, for some milliseconds at a time.
 */
import { systemClock, turnNumber } from "../clock.ts";

/** Long work waits for connections no longer than this, however many come. Some hundred are accepted meanwhile. */
const LEFT_MS = 10;

const NEVER = -2;
let arrivedIn = NEVER;
let workedIn = NEVER;
/** The time since which turns are left to connections; null while none is. */
let leftSinceMs: number | null = null;

/** Notes that a client has connected in this turn, so that others may be waiting. */
export function noteArrival(): void {
  arrivedIn = turnNumber();
}

/** Whether long work is to leave this turn of the event loop to connections. */
export function isTurnLeft(): boolean {
  const turn = turnNumber();
  if (turn > arrivedIn + 1) leftSinceMs = null;
  if (turn !== arrivedIn || turn === workedIn) return false;
  const nowMs = systemClock.elapsedMs();
  leftSinceMs ??= nowMs;
  if (nowMs - leftSinceMs < LEFT_MS) return true;
  leftSinceMs = null;
  workedIn = turn;
  return false;
}
