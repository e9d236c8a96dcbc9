/**
 * A delivery takes the results of one batch to one place outside of batchd: a location of the configuration, or a bucket
 * whose credentials the client gave for this one delivery.
 */
import type { DeliveryStatus } from "../contract/delivery.ts";
import type { ResultFormat } from "../contract/results.ts";
import type { BatchId, Id } from "./batch.ts";
import { randomHexId } from "./random-id.ts";

export type DeliveryId = Id<"delivery">;

/** A bucket that the client named, without its credentials. */
export interface ClientBucket {
  readonly bucket: string;
  /** It is empty, or a path that ends in `/`. */
  readonly prefix: string;
  readonly region: string;
  /** The address of the server; null for the one of AWS in this region. */
  readonly endpoint: string | null;
  readonly forcePathStyle: boolean;
}

/** The credentials that a client brings for its bucket. */
export interface BucketCredentials {
  readonly accessKeyId: string;
  readonly secretAccessKey: string;
  readonly sessionToken: string | null;
}

export interface DeliveryError {
  readonly code: string;
  readonly message: string;
}

/** Says where the results go, and in which form. Either `location` or `s3` is set. */
export interface DeliveryOrder {
  /** The name of a location of the configuration. */
  readonly location: string | null;
  readonly s3: ClientBucket | null;
  /** The folder below the location, as the client wrote it. */
  readonly path: string | null;
  readonly format: ResultFormat;
}

export interface Delivery extends DeliveryOrder {
  readonly id: DeliveryId;
  readonly batchId: BatchId;
  readonly status: DeliveryStatus;
  /** The number of attempts that were begun. */
  readonly attemptCount: number;
  /** The reason for which the last attempt failed; null after a success. */
  readonly error: DeliveryError | null;
  /** The place of the results, in words for people; null until they are there. */
  readonly address: string | null;
  readonly createdAtMs: number;
  /** The time from which the results were there to be delivered; null while the batch runs. */
  readonly dueAtMs: number | null;
  /** The time of the next attempt; null while the batch runs, and after the end. */
  readonly nextAttemptAtMs: number | null;
  readonly endedAtMs: number | null;
}

/**
 * The error of a delivery that its client has cancelled. An unfinished delivery with this error is to be ended by its holder,
 * or by the next one.
 */
export const CANCELLED: DeliveryError = {
  code: "cancelled",
  message: "The delivery was cancelled by its client.",
};

export const isCancelled = ({ error }: Pick<Delivery, "error">): boolean =>
  error?.code === CANCELLED.code;

export const newDeliveryId = (): DeliveryId => `delivery_${randomHexId()}` as DeliveryId;

/**
 * Names the place that a delivery goes to, the same for all deliveries to it. A batch has one delivery to a place at a
 * time.
 */
export function destinationOf({ location, s3 }: Pick<DeliveryOrder, "location" | "s3">): string {
  if (s3 === null) return `location:${location}`;
  return `s3:${s3.endpoint ?? s3.region}/${s3.bucket}`;
}
