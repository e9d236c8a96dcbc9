/**
 * The things batchd keeps: files, batches and the chunks of a batch. Instants are milliseconds since
 * 1970 (`…AtMs`); Unix seconds exist only on the wire.
 */
import { randomBytes } from "node:crypto";
import type { BatchEndpoint, BatchStatus } from "../contract/batch.ts";
import type { FilePurpose } from "../contract/file.ts";
import type { FaultCode } from "./codes.ts";
import { randomHexId } from "./random-id.ts";

declare const kind: unique symbol;
declare const issued: unique symbol;

/** An id as a client wrote it. It may name a thing of another project, so no query takes it without one. */
export type UntrustedId<Kind extends string> = string & { readonly [kind]: Kind };

/** An id that the server made. A file id where a batch id belongs does not compile, and neither does an untrusted id. */
export type Id<Kind extends string> = UntrustedId<Kind> & { readonly [issued]: true };

/** What a client may ask for: the id it wrote, within the project of its key. */
export interface ScopedId<Kind extends string> {
  readonly project: string;
  readonly id: UntrustedId<Kind>;
}

export type FileId = Id<"file">;
export type BatchId = Id<"batch">;
export type UploadId = Id<"upload">;
export type PartId = Id<"part">;

export interface StoredFile {
  readonly id: FileId;
  readonly project: string;
  readonly purpose: FilePurpose;
  readonly filename: string;
  readonly bytes: number;
  /** Of the content, in hexadecimal. */
  readonly sha256: string;
  readonly blobKey: string;
  readonly createdAtMs: number;
  readonly expiresAtMs: number | null;
  /** Of the trace in which it was uploaded or written, as W3C `traceparent`. */
  readonly traceparent: string | null;
}

/** Something wrong with an input file; `line` counts from 1 and is null for the whole file. */
export interface Fault {
  readonly code: FaultCode;
  readonly message: string;
  readonly param: string | null;
  readonly line: number | null;
}

export interface Counts {
  readonly total: number;
  readonly completed: number;
  readonly failed: number;
}

/** Tokens, summed over the answers of a batch. */
export interface Usage {
  readonly inputTokens: number;
  readonly cachedTokens: number;
  readonly outputTokens: number;
  readonly reasoningTokens: number;
  readonly totalTokens: number;
}

export const NO_USAGE: Usage = {
  inputTokens: 0,
  cachedTokens: 0,
  outputTokens: 0,
  reasoningTokens: 0,
  totalTokens: 0,
};

/** Why a batch is to end before its last line. */
export type StopReason = "cancelled" | "expired";

export interface Batch {
  readonly id: BatchId;
  readonly project: string;
  readonly endpoint: BatchEndpoint;
  /** As the client wrote it: a file only within the project of the batch. */
  readonly inputFileId: UntrustedId<"file">;
  /** As its client asked for it, such as `24h`. */
  readonly completionWindow: string;
  readonly status: BatchStatus;
  readonly stopReason: StopReason | null;
  /** The model of its first line; null until validated. */
  readonly model: string | null;
  readonly faults: readonly Fault[] | null;
  readonly outputFileId: FileId | null;
  readonly errorFileId: FileId | null;
  readonly createdAtMs: number;
  readonly expiresAtMs: number;
  readonly inProgressAtMs: number | null;
  readonly finalizingAtMs: number | null;
  readonly completedAtMs: number | null;
  readonly failedAtMs: number | null;
  readonly expiredAtMs: number | null;
  readonly cancellingAtMs: number | null;
  readonly cancelledAtMs: number | null;
  readonly counts: Counts;
  readonly usage: Usage;
  readonly metadata: Readonly<Record<string, string>> | null;
  /** Seconds from the creation of its output files to their expiry; null leaves it to the server. */
  readonly outputExpiresAfterSeconds: number | null;
  /** From −10 to 10: how large its share is beside the other batches of its project. */
  readonly priority: number;
  /** What its lines without a model ask for. Until it is validated, null leaves that to the configuration. */
  readonly defaultModel: string | null;
  /** Of the trace in which it was created, as W3C `traceparent`. */
  readonly traceparent: string | null;
}

/** Consecutive lines of the input file: bytes `[start, end)`, the first of them being line `firstLine`. */
export interface InputExtent {
  readonly start: number;
  readonly end: number;
  readonly firstLine: number;
}

/** Lines of one route that one worker leases together. */
export interface Chunk {
  readonly batchId: BatchId;
  /** Its place among the chunks of the batch, from 0, by first line. */
  readonly number: number;
  /** A public model name that leads to the chunk's route. Its lines may ask for others that do. */
  readonly model: string;
  readonly lineCount: number;
  readonly extents: readonly InputExtent[];
}

const BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const FILE_ID_LENGTH = 22;

export function newFileId(): FileId {
  let id = "file-";
  while (id.length < "file-".length + FILE_ID_LENGTH) {
    // A byte of 248 and more would favour the first letters: 248 = 4 × 62.
    for (const byte of randomBytes(FILE_ID_LENGTH)) {
      if (byte < 248 && id.length < "file-".length + FILE_ID_LENGTH) id += BASE62[byte % 62];
    }
  }
  return id as FileId;
}

/** `batch_`, the creation time in 8 hexadecimal digits, and 24 random ones. */
export function newBatchId(nowMs: number): BatchId {
  const seconds = Math.floor(nowMs / 1000);
  return `batch_${seconds.toString(16).padStart(8, "0")}${randomBytes(12).toString("hex")}` as BatchId;
}

export const newUploadId = (): UploadId => `upload_${randomHexId()}` as UploadId;

export const newPartId = (): PartId => `part_${randomHexId()}` as PartId;
