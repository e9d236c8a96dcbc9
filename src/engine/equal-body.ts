/** Looks for an earlier line with an equal body, in slices where the body is long, because it would hold up the event loop. */
import type { EqualBodies } from "../batch/equal-bodies.ts";
import { read } from "../resources/time-slice.ts";

/** Returns the number of the line; null for a body that is new, which is remembered. Only a long body makes a promise. */
export function firstWithBody(
  bodies: EqualBodies,
  body: Buffer,
  lineNumber: number,
): number | null | Promise<number | null> {
  const digest = read(bodies.digesting, body);
  return digest instanceof Promise
    ? digest.then((whole) => bodies.firstWith(whole, lineNumber))
    : bodies.firstWith(digest, lineNumber);
}
