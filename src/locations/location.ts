/**
 * The port for places outside of batchd's own storage, which the operator has configured: the input of a batch may come
 * from one, and the results of a batch may go to one.
 *
 * Clients name a location and a path below it. An adapter must never reach anything else, whatever the path is and
 * whatever the place contains. A *parcel* is the files of one delivery. It appears whole or not at all.
 *
 * A location knows nothing of projects: `locations.ts` decides who may use which one.
 */
import type { BatchId } from "../batch/batch.ts";
import type { LocationPath } from "./location-path.ts";

export type LocationKind = "folder" | "s3" | "git" | "oxen";

export interface Location {
  readonly name: string;
  readonly kind: LocationKind;
  /** Opens one file. Throws a {@link LocationError}. */
  open(path: LocationPath, options: OpenCall): Promise<LocationFile>;
  /**
   * Publishes the files of a parcel, whole or not at all. A repeated call for the same batch goes on, or finds what is
   * there. It never doubles anything. Throws a {@link LocationError}.
   */
  deliver(parcel: Parcel, options: DeliveryCall): Promise<Delivered>;
  /**
   * Removes what the attempts of a delivery have left there, once no further attempt will be made. `saved` is the last
   * text that {@link DeliveryProgress.save} got.
   */
  discard(saved: string, options: LocationCall): Promise<void>;
  /** Closes idle connections, if an adapter keeps any. No call may follow. */
  close?(): void;
}

/**
 * A location that has a name, in the configuration or for a client. The name may be given to another place later. A
 * caller that may have got the bucket of a client disposes of it after its last call.
 */
export interface NamedLocation extends Location, Disposable {
  /** Tells the place from others that get the same name. */
  readonly placeId: string;
}

export interface LocationCall {
  readonly signal: AbortSignal;
}

export interface OpenCall extends LocationCall {
  /** The most bytes that the caller takes. A place that has to copy a file before it is read copies no more. */
  readonly maxBytes?: number;
}

export interface DeliveryCall extends LocationCall {
  readonly progress: DeliveryProgress;
}

/** A file that is open for reading. Callers dispose of it, whether or not they have read it. */
export interface LocationFile extends AsyncDisposable {
  /** It is null if the place does not say. */
  readonly bytes: number | null;
  /** Identifies this content of the file there, such as a commit; null if the place has no such name. */
  readonly revision: string | null;
  /** The bytes, once. Iteration throws a {@link LocationError} if they end early. */
  readonly content: AsyncIterable<Buffer>;
}

/** The results of one batch on their way to one location. */
export interface Parcel {
  readonly deliveryId: string;
  readonly batchId: BatchId;
  /** What people call the batch: `metadata.name`, or else its id. */
  readonly title: string;
  /** The `path` of the request. */
  readonly folder: LocationPath | null;
  /** The last one is the manifest, `run.json`. */
  readonly files: readonly ParcelFile[];
  /** The message of a commit. An adapter puts each part on one line. */
  readonly message: {
    readonly subject: string;
    readonly trailers: readonly (readonly [name: string, value: string])[];
  };
}

export interface ParcelFile {
  /** A plain name, without folders. */
  readonly name: string;
  readonly bytes: number;
  /** It is in hexadecimal. */
  readonly sha256: string;
  /** Reads the file. It may be called several times, and the bytes are the same each time. */
  open(startByte?: number): AsyncIterable<Buffer>;
}

/** What an adapter remembers between attempts, such as the id of a multipart upload. */
export interface DeliveryProgress {
  /** What the last attempt has saved. */
  readonly saved: string | null;
  /** Keeps a small text in the place of the last one. It must be durable once the promise resolves. */
  save(text: string): Promise<void>;
}

export interface Delivered {
  /** Says to people where the files are, such as `s3://bucket/prefix/batch_…/`. */
  readonly address: string;
}

export type LocationFailure =
  /** There is no such file. */
  | "not_found"
  /** The place does not accept the credentials of batchd, or does not give it the right. */
  | "forbidden"
  /** The place does not answer, or is overloaded or full. A repetition may succeed. */
  | "unavailable"
  /** The place refuses this request, or does not have what the request needs. */
  | "refused";

/** An expected failure. `message` is for clients: it names no address of the private network, and no secret. */
export class LocationError extends Error {
  override readonly name = "LocationError";
  readonly failure: LocationFailure;

  constructor(failure: LocationFailure, message: string, options?: ErrorOptions) {
    super(message, options);
    this.failure = failure;
  }

  get isRetryable(): boolean {
    return this.failure === "unavailable";
  }
}

/** Matches the names of batches and files. No such name leaves its folder, whatever the place makes of it. */
const PLAIN_NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$/;

/** The folder of a parcel, as the parts of its path: a folder for each batch. */
export function partsOf({ folder, batchId }: Parcel, outermost?: string): readonly string[] {
  if (!PLAIN_NAME.test(batchId)) throw new Error(`not the id of a batch: ${batchId}`);
  const above = folder ?? outermost ?? "";
  return [...above.split("/").filter((part) => part !== ""), batchId];
}

/** Throws for a parcel that is a fault of the caller. */
export function assertParcel({ files }: Parcel): void {
  const names = files.map(({ name }) => name);
  const wrong = names.find((name, i) => !PLAIN_NAME.test(name) || names.indexOf(name) !== i);
  if (wrong !== undefined) throw new Error(`not the name of a file in a parcel: ${wrong}`);
  if (files.length === 0) throw new Error("a parcel has a file");
}
