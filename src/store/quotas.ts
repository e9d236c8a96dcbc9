/**
 * The limits that the store holds in the commit that would exceed them. A count and the row that it is about are one
 * transaction, in which no other of the project comes between, so a limit holds exactly for any number of servers.
 */
import type { Quotas } from "../batch/project.ts";

/** The rejection of a commit that would exceed a quota. Nothing is stored. */
export class QuotaExceeded extends Error {
  override readonly name = "QuotaExceeded";
  readonly quota: "files" | "stored_bytes" | "open_batches" | "enqueued_lines";
  readonly limit: number;

  constructor(quota: QuotaExceeded["quota"], limit: number) {
    super(`the quota ${quota} of ${limit} would be exceeded`);
    this.quota = quota;
    this.limit = limit;
  }
}

export type FileQuotas = Pick<Quotas, "files" | "storedBytes">;
export type BatchQuotas = Pick<Quotas, "openBatches">;
export type LineQuotas = Pick<Quotas, "enqueuedLines">;

/** What a project may ask for in the present minute. */
export interface RequestAllowance {
  /** Whether the request is within the limit. A refused request does not count. */
  readonly isGranted: boolean;
  readonly remaining: number;
  /** The time to the next minute. */
  readonly resetsInMs: number;
}

/** A place for one interactive request. It ends by itself, so that a process that dies keeps none. */
export interface InteractiveSlot {
  readonly id: string;
  readonly project: string;
}

export interface QuotaStore {
  /** Counts a request of the project in the present minute, unless there were `limit` already. */
  takeRequest(project: string, limit: number): Promise<RequestAllowance>;
  /** Takes a slot for `ttlMs`. Returns false when `limit` slots of the project are taken. */
  takeInteractiveSlot(
    slot: InteractiveSlot,
    { limit, ttlMs }: { readonly limit: number; readonly ttlMs: number },
  ): Promise<boolean>;
  /** Keeps these slots for another `ttlMs`. */
  renewInteractiveSlots(ids: readonly string[], ttlMs: number): Promise<void>;
  releaseInteractiveSlot(id: string): Promise<void>;
}

/** Throws when a project that has this much would exceed a limit with one file of `bytes` more. */
export function assertRoomForFile(
  has: { readonly files: number; readonly bytes: number },
  bytes: number,
  { files, storedBytes }: FileQuotas,
): void {
  if (files !== null && has.files + 1 > files) throw new QuotaExceeded("files", files);
  if (storedBytes !== null && has.bytes + bytes > storedBytes) {
    throw new QuotaExceeded("stored_bytes", storedBytes);
  }
}

export const boundsFiles = (quotas: FileQuotas | undefined): quotas is FileQuotas =>
  quotas !== undefined && (quotas.files !== null || quotas.storedBytes !== null);

export const MINUTE_MS = 60_000;

/** `count` is the number of the request in its minute; null when there were `limit` already. */
export const allowanceOf = (
  count: number | null,
  limit: number,
  nowMs: number,
): RequestAllowance => ({
  isGranted: count !== null,
  remaining: count === null ? 0 : limit - count,
  resetsInMs: MINUTE_MS - (nowMs % MINUTE_MS),
});
