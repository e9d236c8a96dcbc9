/**
 * The things that batchd keeps: files, batches and the chunks of a batch. Instants are milliseconds since 1970
 * (`…AtMs`). Only the wire has Unix seconds.
 */
import { randomBytes } from "node:crypto";
import type { BatchEndpoint, BatchStatus } from "../contract/batch.ts";
import type { PauseReason, SourceLines } from "../contract/batch-extension.ts";
import type { FilePurpose } from "../contract/file.ts";
import type { FaultCode } from "./codes.ts";
import type { FailureGroup } from "./failures.ts";
import type { Decimal } from "./price.ts";
import { randomHexId } from "./random-id.ts";
import type { CopiedFrom } from "./run-summary.ts";

declare const kind: unique symbol;
declare const issued: unique symbol;

/** An id as a client wrote it. It may name a thing of another project, so every query takes the project with it. */
export type UntrustedId<Kind extends string> = string & { readonly [kind]: Kind };

/**
 * An id that the server made. A file id in the place of a batch id does not compile, and neither does an untrusted id.
 */
export type Id<Kind extends string> = UntrustedId<Kind> & { readonly [issued]: true };

/** The key of a thing that a client asks for: the id that it wrote, within the project of its credentials. */
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
  /** The digest of the content, in hexadecimal. */
  readonly sha256: string;
  readonly blobKey: string;
  readonly createdAtMs: number;
  readonly expiresAtMs: number | null;
  /** The trace in which the file was uploaded or written, as W3C `traceparent`. */
  readonly traceparent: string | null;
  /** The location that the file was copied from; left out for one that was uploaded or made here. */
  readonly copiedFrom?: CopiedFrom;
}

/** A fault of an input file. `line` counts from 1 and is null for a fault of the whole file. */
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

/** The tokens of all answers of a batch. */
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

/** The names of what has made an answer; null for a name that it does not have. */
export interface AnswerNames {
  readonly model: string | null;
  readonly fingerprint: string | null;
}

/** The reason for which a batch ends before its last line. */
export type StopReason = "cancelled" | "expired";

/** A pause: nothing new goes out. Requests in flight end and count, and the window goes on. */
export interface Pause {
  readonly sinceMs: number;
  readonly reason: PauseReason;
}

/** The lines of another batch that a batch runs again. `failed` includes those that never ran. */
export interface BatchSource {
  readonly batchId: BatchId;
  readonly lines: SourceLines;
  /** Whether the result files shall have all lines of the source, or only those that ran again. */
  readonly isMerged: boolean;
  /** The files to merge with; null until the input is made, and when nothing is merged. */
  readonly merge: MergedFiles | null;
  /** The template of the bodies, as JSON; null when the lines run as they are. */
  readonly template: string | null;
}

/** The lines whose bodies came before. They are not sent, and get the answer of the first line with their body. */
export interface Duplicates {
  readonly lineCount: number;
  /** The number of the first of them; null when there is none. */
  readonly firstLine: number | null;
}

/** The files that a merged batch reads beside its own input. Their bytes stay until it ends. */
export interface MergedFiles {
  /** The file that numbers the lines: the input of the first batch that was retried. */
  readonly inputFileId: UntrustedId<"file">;
  readonly outputFileId: FileId | null;
  readonly errorFileId: FileId | null;
}

/** The place of a line in its file: `[number, offset]`. */
export type LineMark = readonly [number, number];

export interface Batch {
  readonly id: BatchId;
  readonly project: string;
  readonly endpoint: BatchEndpoint;
  /** The id as the client wrote it. It names a file only within the project of the batch. */
  readonly inputFileId: UntrustedId<"file">;
  /** The window as the client asked for it, such as `24h`. */
  readonly completionWindow: string;
  readonly status: BatchStatus;
  readonly stopReason: StopReason | null;
  /** The pause that was asked for last; it means nothing once the batch has no line left to send. */
  readonly paused: Pause | null;
  /** The number of lines to run before the batch pauses; null to run all. */
  readonly sample: number | null;
  /** The batch whose lines are run again; null for a batch with an input of its own. */
  readonly source: BatchSource | null;
  /** Whether the input is still to be made of lines of the source. Until then no file has the id of the input. */
  readonly isInputPending: boolean;
  /** It is null for a batch that sends every line, also those with equal bodies. */
  readonly deduplicated: Duplicates | null;
  /** The places of some lines, in order, from which a reader finds the others. Empty until the batch is validated. */
  readonly lineMarks: readonly LineMark[];
  /** The model of the first line; null until the batch is validated. */
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
  /** The failed lines by status and code. Versions before 0.2 did not count them. */
  readonly failures: readonly FailureGroup[];
  readonly metadata: Readonly<Record<string, string>> | null;
  /** The seconds from the creation of the output files to their expiry; null means the server's default. */
  readonly outputExpiresAfterSeconds: number | null;
  /** A number from −10 to 10. A batch with a higher one gets a larger share of the slots of its project. */
  readonly priority: number;
  /** The most that the batch may cost; null for no limit. */
  readonly budget: Decimal | null;
  /** The model for lines that name none. Until the batch is validated, null leaves it to the configuration. */
  readonly defaultModel: string | null;
  /** The trace in which the batch was created, as W3C `traceparent`. */
  readonly traceparent: string | null;
}

/** A run of consecutive lines of the input file: the bytes `[start, end)`. `firstLine` is the number of the first. */
export interface InputExtent {
  readonly start: number;
  readonly end: number;
  readonly firstLine: number;
}

/** Lines of one route that one worker leases together. */
export interface Chunk {
  readonly batchId: BatchId;
  /** The place among the chunks of the batch, from 0, in the order of their first lines. */
  readonly number: number;
  /** A public model name that leads to the route of the chunk. Its lines may name other models of the same route. */
  readonly model: string;
  readonly lineCount: number;
  readonly extents: readonly InputExtent[];
}

const BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const FILE_ID_LENGTH = 22;

export function newFileId(): FileId {
  let id = "file-";
  while (id.length < "file-".length + FILE_ID_LENGTH) {
    // 248 is 4 × 62. A larger byte is skipped, because it would make the first letters more frequent.
    for (const byte of randomBytes(FILE_ID_LENGTH)) {
      if (byte < 248 && id.length < "file-".length + FILE_ID_LENGTH) id += BASE62[byte % 62];
    }
  }
  return id as FileId;
}

/** An id of `batch_`, the creation time in 8 hexadecimal digits, and 24 random digits. */
export function newBatchId(nowMs: number): BatchId {
  const seconds = Math.floor(nowMs / 1000);
  return `batch_${seconds.toString(16).padStart(8, "0")}${randomBytes(12).toString("hex")}` as BatchId;
}

export const newUploadId = (): UploadId => `upload_${randomHexId()}` as UploadId;

export const newPartId = (): PartId => `part_${randomHexId()}` as PartId;
