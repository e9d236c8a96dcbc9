/** One attempt at a delivery: opens the place, makes the parcel and hands it over. */
import type { Delivery, DeliveryError } from "../batch/delivery.ts";
import { BlobNotFound, BlobsUnavailable, BlobTooShort } from "../blobs/blobs.ts";
import { LocationError, type NamedLocation } from "../locations/location.ts";
import type { ClaimedDelivery } from "../store/deliveries.ts";
import { systemCodes } from "../system-code.ts";
import type { ClientBuckets } from "./client-buckets.ts";
import { isLeftElsewhere, leftText, NOTHING_LEFT, parseLeft } from "./left.ts";
import { BatchGone, type ParcelDeps, withParcel } from "./parcel.ts";
import { CannotUnseal } from "./sealed-credentials.ts";

export type AttemptEnd =
  | { readonly kind: "delivered"; readonly address: string }
  | {
      readonly kind: "failed";
      readonly error: DeliveryError;
      readonly isRetryable: boolean;
      /** The failure was not expected: the log needs all of it. */
      readonly cause: unknown;
    };

export interface AttemptDeps extends ParcelDeps {
  /** Finds a location that the project may write to. */
  readonly findLocation: (project: string, name: string) => NamedLocation | null;
  readonly clientBuckets: ClientBuckets;
}

export interface AttemptCall {
  readonly signal: AbortSignal;
  readonly saveProgress: (text: string) => Promise<void>;
  /** Removes what former attempts have left. It never rejects. */
  readonly discardLeft: () => Promise<void>;
}

/** Rejects only with the reason of an aborted signal. */
export async function attempt(
  claimed: ClaimedDelivery,
  { signal, saveProgress, discardLeft }: AttemptCall,
  deps: AttemptDeps,
): Promise<AttemptEnd> {
  const unsaved: unknown[] = [];
  try {
    const { batch, delivery, credentials } = claimed;
    using location = await placeOf({ project: batch.project, delivery, credentials }, deps);
    const { placeId } = location;
    const save = (saved: string) =>
      saveProgress(leftText({ placeId, saved })).catch((reason: unknown) => {
        unsaved.push(reason);
        throw reason;
      });
    const left = parseLeft(claimed.progress);
    const isElsewhere = isLeftElsewhere(left, placeId);
    if (isElsewhere) {
      await discardLeft();
      await saveProgress(leftText(NOTHING_LEFT));
    }
    const progress = { saved: isElsewhere ? null : left.saved, save };
    const { address } = await withParcel(claimed, { deps, signal }, (parcel) =>
      location.deliver(parcel, { signal, progress }),
    );
    return { kind: "delivered", address };
  } catch (thrown) {
    if (signal.aborted) throw signal.reason;
    // A place takes a failed save for a fault of its own.
    const [cause = thrown] = unsaved;
    const isDoubted = deps.blobs.mayBeBehind && claimed.delivery.attemptCount <= DOUBTED_ATTEMPTS;
    return isDoubted && cause instanceof BlobNotFound ? NOT_FOUND : failureOf(cause, deps);
  }
}

interface Place {
  readonly project: string;
  readonly delivery: Pick<Delivery, "id" | "location" | "s3">;
  readonly credentials: string | null;
}

/** Opens the place of a delivery. Throws a `LocationError` for one that is not configured any more. */
export async function placeOf(
  { project, delivery, credentials }: Place,
  { findLocation, clientBuckets }: Pick<AttemptDeps, "findLocation" | "clientBuckets">,
): Promise<NamedLocation> {
  const { id, location: name, s3 } = delivery;
  if (s3 !== null) {
    if (clientBuckets.refusal() !== null || credentials === null) {
      const failure = clientBuckets.isOfFleet ? "unavailable" : "refused";
      throw new LocationError(failure, "this server takes no buckets of clients any more");
    }
    return clientBuckets.open(s3, await clientBuckets.unseal(id, credentials));
  }
  const found = name === null ? null : findLocation(project, name);
  // It may come back with the next configuration, and another server may have it.
  if (found === null) throw new LocationError("unavailable", `there is no location '${name}'`);
  return found;
}

/** A bucket whose copies are behind may not find a file that was just written. After so many attempts it has its word taken. */
const DOUBTED_ATTEMPTS = 2;

function failureOf(
  cause: unknown,
  { clientBuckets }: Pick<AttemptDeps, "clientBuckets">,
): AttemptEnd {
  if (cause instanceof LocationError) {
    const error = { code: cause.failure, message: cause.message };
    return { kind: "failed", error, isRetryable: cause.isRetryable, cause: null };
  }
  if (cause instanceof CannotUnseal) {
    const { isOfFleet } = clientBuckets;
    return failed("credentials_lost", "The credentials can no longer be decrypted.", isOfFleet);
  }
  const isGone = cause instanceof BlobNotFound || cause instanceof BatchGone;
  if (isGone || cause instanceof BlobTooShort) {
    return failed("results_lost", "A result file is gone or damaged.", false);
  }
  if (cause instanceof BlobsUnavailable) {
    return failed("storage_unavailable", "The storage of the results does not answer.", true);
  }
  const codes = systemCodes(cause);
  const shortage = SHORTAGES.find((each) => codes.some((code) => each.codes.test(code)));
  const error =
    shortage === undefined
      ? { code: "internal_error", message: "An internal error has occurred." }
      : { code: "storage_unavailable", message: shortage.message };
  return { kind: "failed", error, isRetryable: true, cause };
}

/** What the server itself is short of, by the codes of errors. The place is not at fault. */
const SHORTAGES = [
  { codes: /^(?:ENOSPC|EDQUOT|SQLITE_FULL)$/, message: "The disk of the server is full." },
  { codes: /^E[MN]FILE$/, message: "The server has too many files open." },
  {
    codes: /^(?:STORE_(?:UNAVAILABLE|DAMAGED)|SQLITE_(?:BUSY|LOCKED|IOERR|READONLY))/,
    message: "The database of the server cannot be read or written.",
  },
];

export const failed = (code: string, message: string, isRetryable: boolean): AttemptEnd => ({
  kind: "failed",
  error: { code, message },
  isRetryable,
  cause: null,
});

const NOT_FOUND = failed(
  "storage_unavailable",
  "The storage of the results does not find a file. It is asked again.",
  true,
);
