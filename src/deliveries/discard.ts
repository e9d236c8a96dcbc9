/**
 * Cleans up at a place after a delivery that ended without success, such as the parts of an upload to a bucket. It never
 * rejects: what cannot be removed is logged, for an operator to remove by hand.
 */
import { type Clock, timeLimit } from "../clock.ts";
import { LocationError, type NamedLocation } from "../locations/location.ts";
import type { Log } from "../telemetry/log.ts";
import { type AttemptDeps, placeOf } from "./attempt.ts";
import { fieldsOf, type HeldDelivery, nameOf, Stalled } from "./held-delivery.ts";
import { parseLeft } from "./left.ts";

/** The time to clean up at a place after the last attempt. */
const DISCARD_MS = 60_000;

export interface DiscardDeps extends Pick<AttemptDeps, "clientBuckets"> {
  readonly clock: Clock;
  readonly log: Log;
  /** Finds a location, whether or not the project of a delivery may still write to it. */
  readonly findLocationToClean: (name: string, placeId: string | null) => NamedLocation | null;
}

export async function discardLeft(
  held: HeldDelivery,
  { clock, log, clientBuckets, findLocationToClean }: DiscardDeps,
): Promise<void> {
  const { batch, delivery, credentials } = held.claimed;
  const { placeId, saved } = parseLeft(held.lastProgress);
  if (saved === null) return;
  const findLocation = (_: string, name: string) => findLocationToClean(name, placeId);
  using timeout = timeLimit(clock, DISCARD_MS, new Stalled());
  try {
    const asked = { project: batch.project, delivery, credentials };
    using place = await placeOf(asked, { clientBuckets, findLocation });
    await place.discard(saved, { signal: timeout.signal });
  } catch (error) {
    const reason = error instanceof LocationError ? error.message : nameOf(error);
    // The operator can remove it by hand.
    const left = JSON.parse(saved) as unknown;
    log.warn({ ...fieldsOf(held.claimed), reason, left }, "delivery.not_discarded");
  }
}
