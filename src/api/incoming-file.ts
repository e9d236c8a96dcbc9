/**
 * The content of a file on its way in: unpacked where it is the input of a batch, counted, and checked as far as an upload
 * can be. It is never held; what it yields goes straight to a blob.
 */
import { type ContentCheck, type ContentReport, NOT_UTF8, noJsonl } from "../batch/content.ts";
import type { CopiedFrom } from "../batch/run-summary.ts";
import type { FilePurpose } from "../contract/file.ts";
import { PublicError } from "../errors.ts";
import {
  hasPackedName,
  NotUnpackable,
  peekAtPacking,
  unpacked,
  unpackedName,
} from "../formats/unpacking.ts";
import type { Origin } from "../telemetry/tracing.ts";

/** The fields that a client sends with a file. */
export interface FileDetails {
  readonly purpose: FilePurpose;
  /** The seconds from the creation of the file to its expiry; null means the server's default. */
  readonly expiresAfterSeconds: number | null;
}

export interface IncomingFile {
  readonly filename: string;
  readonly content: AsyncIterable<Buffer>;
  /** The purpose, as far as it is known before the content is read; null when it may follow. */
  readonly knownPurpose?: () => string | null;
  /** The announced length of the whole request, form included; null without one. */
  readonly requestBytes: number | null;
  /**
   * Resolves after the content has been read to its end, because the fields may follow it. Rejects for any fault of the
   * request.
   */
  readonly details: () => Promise<FileDetails>;
  readonly origin: Origin;
  /** The start of its request, as elapsed time; left out where the file follows at once. */
  readonly startedAtMs?: number;
  /** The location that it is copied from. */
  readonly copiedFrom?: CopiedFrom;
  /** Ends it. A piece that was read before may unpack to a thousand times its bytes. */
  readonly signal?: AbortSignal;
}

/** A file that is being stored, unpacked if it came packed. */
export interface OpenedFile extends IncomingFile, IncomingLimits {
  readonly isUnpacked: boolean;
  /** The most of the content that its unpacking holds in memory. */
  readonly windowBytes: number;
}

/** Limits in bytes. */
export interface IncomingLimits {
  /** The most that may come. */
  readonly maxBytes: number;
  /** The most that the input of a batch may have, unpacked. The purpose may follow the content. */
  readonly maxFileBytes: number;
}

/** Unpacks the input of a batch that is packed. The file is what is in it: its name, its bytes and its hash. */
export async function openIncoming(
  incoming: IncomingFile,
  { maxBytes, maxFileBytes }: IncomingLimits,
): Promise<OpenedFile> {
  const known = incoming.knownPurpose?.() ?? null;
  const mayUnpack = known === "batch" || (known === null && hasPackedName(incoming.filename));
  const limits = {
    maxBytes: known === "batch" ? Math.min(maxBytes, maxFileBytes) : maxBytes,
    maxFileBytes,
  };
  const asItIs = { ...limits, isUnpacked: false, windowBytes: 0 };
  if (!mayUnpack) return { ...incoming, ...asItIs };
  const { content, packing } = await peekAtPacking(incoming.content);
  if (packing === null) return { ...incoming, content, ...asItIs };
  return {
    ...incoming,
    filename: unpackedName(incoming.filename, packing),
    content: refusing(unpacked(content, packing, Math.min(maxBytes, maxFileBytes))),
    maxBytes: maxFileBytes,
    maxFileBytes,
    isUnpacked: true,
    windowBytes: packing.windowBytes,
    requestBytes: null,
  };
}

/**
 * Yields the content, and throws for any fault of it or of the rest of the request. The store of blobs drops a source
 * that throws.
 */
export async function* checkedContent(
  incoming: OpenedFile,
  check: ContentCheck,
): AsyncGenerator<Buffer, void> {
  const { maxBytes, maxFileBytes, requestBytes, signal } = incoming;
  for await (const chunk of incoming.content) {
    signal?.throwIfAborted();
    check.add(chunk);
    if (check.bytes > maxBytes) throw fileTooLarge(maxBytes, requestBytes);
    yield chunk;
  }
  const { purpose } = await incoming.details();
  if (purpose === "batch") {
    if (check.bytes > maxFileBytes) throw fileTooLarge(maxFileBytes, requestBytes);
    assertBatchInput(check.report());
  } else if (incoming.isUnpacked) throw purposeTooLate(purpose);
}

/**
 * The error for a file that is too large. The server does not read it to its end, so it can only name the announced
 * length.
 */
const fileTooLarge = (maxBytes: number, requestBytes: number | null) =>
  new PublicError(
    "invalid_request",
    `File is too large. It may have at most ${maxBytes} bytes (${inMebibytes(maxBytes)}); the request has ${requestBytes ?? "more"}.`,
  );

/** Yields the content, and answers a client whose packed file cannot be read. */
async function* refusing(content: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  try {
    yield* content;
  } catch (cause) {
    if (!(cause instanceof NotUnpackable)) throw cause;
    throw new PublicError("invalid_request", cause.message, { cause });
  }
}

/** Only the input of a batch is unpacked, and only afterwards the form says that this is none. */
const purposeTooLate = (purpose: string) =>
  new PublicError(
    "invalid_request",
    `A packed file of purpose '${purpose}' must come after its purpose. (HINT: Put 'purpose' before 'file' in the form.)`,
    { param: "purpose" },
  );

const inMebibytes = (bytes: number) => `${Number((bytes / (1024 * 1024)).toPrecision(3))} MiB`;

/** Checks batch input as far as an upload can. A batch checks the lines when it reads them. */
function assertBatchInput({ isUtf8, formatHint }: ContentReport): void {
  if (!isUtf8) throw new PublicError("invalid_request", NOT_UTF8);
  if (formatHint !== null) throw new PublicError("invalid_request", noJsonl(formatHint));
}
