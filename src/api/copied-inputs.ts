/**
 * Makes files of inputs that lie in a location of the operator. The content is copied while the client waits, so a file
 * that exists is whole, and nothing is left of a request that ends early: its blob has no row, and is swept.
 */
import type { StoredFile } from "../batch/batch.ts";
import { type Clock, timeLimit } from "../clock.ts";
import { clientGone, PublicError } from "../errors.ts";
import { LocationError } from "../locations/location.ts";
import { type LocationPath, parseLocationPath } from "../locations/location-path.ts";
import type { Locations } from "../locations/locations.ts";
import { StoreUnavailable } from "../store/failures.ts";
import type { ReceiptFor } from "../store/idempotency.ts";
import type { Origin } from "../telemetry/tracing.ts";
import { truncate } from "../text/truncate.ts";
import type { ClientLimit } from "./client-limit.ts";
import type { Files } from "./files.ts";

const PARAM = "x_batchd.input";
/** The time for a copy. A location that has stopped answering must not hold a place for ever. */
const MAX_COPY_MS = 30 * 60 * 1000;
const RETRY_AFTER_MS = 5_000;

export interface InputPlace {
  readonly location: string;
  readonly path: string;
}

export interface CopyRequest {
  readonly place: InputPlace;
  readonly expiresAfterSeconds: number | null;
  readonly origin: Origin;
  /** Aborts when the client is gone. */
  readonly disconnected: AbortSignal;
}

export interface CopiedInputsDeps {
  readonly files: Files;
  readonly locations: Pick<Locations, "find">;
  /** Limits those who read much: a copy is one of them. */
  readonly readers: ClientLimit;
  readonly clock: Pick<Clock, "after">;
  /** The most bytes that the input of a batch may have. */
  readonly maxFileBytes: () => number;
}

export class CopiedInputs {
  readonly #deps: CopiedInputsDeps;

  constructor(deps: CopiedInputsDeps) {
    this.#deps = deps;
  }

  async copy(
    project: string,
    { place, expiresAfterSeconds, origin, disconnected }: CopyRequest,
    receiptFor?: ReceiptFor<StoredFile>,
  ): Promise<StoredFile> {
    const { files, locations, readers, clock, maxFileBytes } = this.#deps;
    const path = checkedPath(place.path);
    const location = locations.find(project, place.location, "read");
    if (location === null) throw unknownLocation(place.location);
    using _reader = readers.acquire(project);
    using tooLong = timeLimit(clock, MAX_COPY_MS, copyTookTooLong());
    const signal = AbortSignal.any([disconnected, tooLong.signal]);
    try {
      await using opened = await location.open(path, { signal, maxBytes: maxFileBytes() });
      const { revision } = opened;
      const incoming = {
        filename: path.slice(path.lastIndexOf("/") + 1),
        content: opened.content,
        knownPurpose: () => "batch",
        requestBytes: null,
        details: async () => ({ purpose: "batch", expiresAfterSeconds }) as const,
        origin,
        copiedFrom: { location: location.name, path, revision },
        signal,
      };
      return await files.receive(project, incoming, receiptFor);
    } catch (error) {
      if (disconnected.aborted && error === disconnected.reason)
        throw clientGone("its input was copied");
      throw error instanceof LocationError ? publicError(error, place) : error;
    }
  }

  /**
   * Deletes a copy whose batch could not be made because of `cause`. Where the answer of the database was lost, the batch
   * may be there and need it.
   */
  async discard({ project, id }: StoredFile, cause: unknown): Promise<void> {
    const isInDoubt = cause instanceof PublicError && cause.error === "outcome_unknown";
    if (isInDoubt || cause instanceof StoreUnavailable) return;
    await this.#deps.files.delete({ project, id });
  }
}

function checkedPath(text: string): LocationPath {
  const parsed = parseLocationPath(text);
  if (parsed.ok) return parsed.path;
  throw new PublicError("invalid_value", `Invalid '${PARAM}.path': it ${parsed.problem}.`, {
    param: `${PARAM}.path`,
  });
}

/** A project must not learn which locations others have. */
const unknownLocation = (name: string) =>
  new PublicError(
    "invalid_value",
    `Invalid '${PARAM}.location': there is no location '${truncate(name)}' that this project may read.`,
    { param: `${PARAM}.location` },
  );

const copyTookTooLong = () =>
  new PublicError("unavailable", "The input could not be copied in time. Please try again.", {
    retryAfterMs: RETRY_AFTER_MS,
  });

function publicError(error: LocationError, { location, path }: InputPlace): PublicError {
  const message = `Cannot read '${truncate(path)}' in the location '${location}': ${error.message}`;
  const options = { param: `${PARAM}.path`, cause: error };
  if (error.isRetryable) {
    return new PublicError("unavailable", message, { ...options, retryAfterMs: RETRY_AFTER_MS });
  }
  return new PublicError("invalid_value", message, options);
}
