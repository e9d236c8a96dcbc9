/**
 * The limits that the store holds in the commit that would exceed them. A count and the row that it is about are one
 * transaction, in which no other of the project comes between, so a limit holds exactly for any number of servers.
 */
import type { Quotas } from "../batch/project.ts";

type QuotaName =
  | "files"
  | "stored_bytes"
  | "open_batches"
  | "enqueued_lines"
  | "enqueued_tokens"
  | "tokens_per_day"
  | "cost_per_month";

/** The rejection of a commit that would exceed a quota. Nothing is stored. */
export class QuotaExceeded extends Error {
  override readonly name = "QuotaExceeded";
  readonly quota: QuotaName;
  /** An amount of money is a text. */
  readonly limit: number | string;

  constructor(quota: QuotaName, limit: number | string) {
    super(`the quota ${quota} of ${limit} would be exceeded`);
    this.quota = quota;
    this.limit = limit;
  }
}

export type FileQuotas = Pick<Quotas, "files" | "storedBytes">;
export type BatchQuotas = FileQuotas &
  Pick<Quotas, "openBatches" | "tokensPerDay" | "costPerMonth">;
export type LineQuotas = Pick<Quotas, "enqueuedLines" | "enqueuedTokens">;

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
  /**
   * Counts a request of the project in the present minute, unless there were `limit` already. One of the minute before that comes
   * behind one of the present minute counts in the present one.
   */
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

/** A project and its limit for the bytes of its files, with the parts of uploads that are not completed. */
export interface ByteQuota {
  readonly project: string;
  readonly quotas: Pick<Quotas, "storedBytes">;
}

/** The files of a project, and their bytes with those of pending uploads. */
export interface StoredSums {
  readonly files: number;
  readonly bytes: number;
}

/** Throws when a project has, or would have, more than it may. Results are never refused, and may take it there. */
export function assertWithin(sums: StoredSums, { files, storedBytes }: FileQuotas): void {
  if (files !== null && sums.files > files) throw new QuotaExceeded("files", files);
  if (storedBytes !== null && sums.bytes > storedBytes) {
    throw new QuotaExceeded("stored_bytes", storedBytes);
  }
}

/** Throws when a project that has this much would exceed a limit with one file of `bytes` more. */
export const assertRoomForFile = (has: StoredSums, bytes: number, quotas: FileQuotas): void =>
  assertWithin({ files: has.files + 1, bytes: has.bytes + bytes }, quotas);

/** Throws as {@link assertRoomForFile} does, for bytes that are no file yet. */
export const assertRoomForBytes = (
  has: StoredSums,
  bytes: number,
  { storedBytes }: ByteQuota["quotas"],
): void => assertRoomForFile(has, bytes, { files: null, storedBytes });

/** Throws when a project that has so many files and pending uploads may have no more files. */
export const assertRoomForUpload = (count: number, { files }: Pick<Quotas, "files">): void =>
  assertRoomForFile({ files: count, bytes: 0 }, 0, { files, storedBytes: null });

export const boundsFiles = (quotas: FileQuotas | undefined): quotas is FileQuotas =>
  quotas !== undefined && (quotas.files !== null || quotas.storedBytes !== null);

/** Throws when a project would have more to do than it may, with a batch that starts. */
export function assertRoomForLines(
  has: { readonly lines: number; readonly tokens: number },
  { enqueuedLines, enqueuedTokens }: LineQuotas,
): void {
  if (enqueuedLines !== null && has.lines > enqueuedLines) {
    throw new QuotaExceeded("enqueued_lines", enqueuedLines);
  }
  if (enqueuedTokens !== null && has.tokens > enqueuedTokens) {
    throw new QuotaExceeded("enqueued_tokens", enqueuedTokens);
  }
}

export const boundsLines = (quotas: LineQuotas | undefined): quotas is LineQuotas =>
  quotas !== undefined && (quotas.enqueuedLines !== null || quotas.enqueuedTokens !== null);

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
