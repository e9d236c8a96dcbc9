/**
 * Large files that come in parts. A part is a blob of its own; completing an upload reads the parts that the
 * client lists, in the order of the list, into the blob of a new file, through the checks that every
 * file goes through. One guarded commit ends the upload and publishes the file, so of two clients
 * that complete, cancel or come too late exactly one is right. What ends an upload leaves its parts to
 * the sweep.
 */
import { createHash } from "node:crypto";
import {
  type FileId,
  newPartId,
  newUploadId,
  type ScopedId,
  type StoredFile,
  type UntrustedId,
} from "../batch/batch.ts";
import { truncate } from "../batch/truncate.ts";
import type { BlobIntents } from "../blobs/blob-intents.ts";
import { BlobNotFound, type Blobs } from "../blobs/blobs.ts";
import type { Clock } from "../clock.ts";
import type { FilePurpose } from "../contract/file.ts";
import { PART_MAX_BYTES, UPLOAD_LIFETIME_MS } from "../contract/upload.ts";
import { PublicError } from "../errors.ts";
import type { ReceiptFor } from "../store/idempotency.ts";
import type { Store } from "../store/store.ts";
import type { Upload, UploadPart } from "../store/uploads.ts";
import type { Log } from "../telemetry/log.ts";
import type { Origin } from "../telemetry/tracing.ts";
import { blobGivenUp, type Files } from "./files.ts";

export interface UploadsDeps {
  readonly store: Store;
  readonly blobs: Blobs;
  readonly intents: BlobIntents;
  readonly clock: Clock;
  readonly log: Log;
  readonly files: Files;
  readonly maxUploadBytes: () => number;
  /** Of the input of a batch. */
  readonly maxFileBytes: () => number;
  /** Tells the engine to look now. Nothing depends on it. */
  readonly nudge: () => void;
}

export interface UploadRequest {
  readonly filename: string;
  readonly purpose: FilePurpose;
  readonly bytes: number;
  readonly mimeType: string;
  /** Of the file to be, from its creation; null leaves it to the server. */
  readonly fileExpiresAfterSeconds: number | null;
}

export interface IncomingPart {
  readonly content: AsyncIterable<Buffer>;
  /** Settles when the content has been read to its end; rejects when anything is wrong with the request. */
  readonly details: () => Promise<unknown>;
}

/** Which parts make the file, in which order. */
export interface Completion {
  readonly partIds: readonly UntrustedId<"part">[];
  /** Of the whole file, in hexadecimal. */
  readonly md5: string | null;
  readonly origin: Origin;
}

export class Uploads {
  readonly #deps: UploadsDeps;

  constructor(deps: UploadsDeps) {
    this.#deps = deps;
  }

  async create(
    project: string,
    request: UploadRequest,
    receiptFor?: ReceiptFor<Upload>,
  ): Promise<Upload> {
    const { store, clock, log, maxFileBytes, maxUploadBytes } = this.#deps;
    // A batch would refuse its input by the smaller limit, after all the parts have come.
    const maxBytes =
      request.purpose === "batch" ? Math.min(maxFileBytes(), maxUploadBytes()) : maxUploadBytes();
    assertBytes(request.bytes, maxBytes);
    const createdAtMs = clock.nowMs();
    const upload: Upload = {
      ...request,
      id: newUploadId(),
      project,
      status: "pending",
      createdAtMs,
      expiresAtMs: createdAtMs + UPLOAD_LIFETIME_MS,
      fileId: null,
    };
    await store.insertUpload(upload, receiptFor?.(upload));
    log.info({ upload: upload.id, project, bytes: upload.bytes }, "upload.created");
    return upload;
  }

  async addPart(asked: ScopedId<"upload">, incoming: IncomingPart): Promise<UploadPart> {
    const { store, blobs, intents, clock, log } = this.#deps;
    const { id: uploadId } = await this.#findPending(asked);
    const id = newPartId();
    const blobKey = `parts/${id}`;
    const part = await intents.during([blobKey], async () => {
      const { bytes } = await blobs.put(blobKey, bounded(incoming));
      const stored: UploadPart = { id, uploadId, bytes, blobKey, createdAtMs: clock.nowMs() };
      const isTaken = await store.insertPartIfPending(stored, stored.createdAtMs);
      if (!isTaken) throw await this.#notTaken(asked, blobKey);
      return stored;
    });
    log.debug({ upload: uploadId, part: id, bytes: part.bytes }, "part.stored");
    return part;
  }

  async complete(
    asked: ScopedId<"upload">,
    completion: Completion,
  ): Promise<{ upload: Upload; file: StoredFile }> {
    const { store, log, nudge } = this.#deps;
    const upload = await this.#findPending(asked);
    const { id, project } = upload;
    const parts = chosenParts(upload, await store.listParts(id), completion.partIds);
    const file = await this.#assemble(upload, parts, completion);
    const { requestId } = completion.origin;
    log.info({ upload: id, project, file: file.id, requestId }, "upload.completed");
    nudge();
    return { upload: { ...upload, status: "completed", fileId: file.id }, file };
  }

  /** Asking again is fine; an upload that ended otherwise cannot be cancelled. */
  async cancel(asked: ScopedId<"upload">): Promise<Upload> {
    const { store, log, nudge } = this.#deps;
    const { id, project, status } = await this.#find(asked);
    if (status === "pending" && (await store.cancelUploadIfPending({ project, id }))) {
      log.info({ upload: id, project }, "upload.cancelled");
      nudge();
    }
    const ended = await this.#find(asked);
    if (ended.status !== "cancelled") throw hasEnded(ended);
    return ended;
  }

  async #assemble(
    upload: Upload,
    parts: readonly UploadPart[],
    { md5, origin }: Completion,
  ): Promise<StoredFile> {
    const { store, files, clock } = this.#deps;
    const { project, filename, purpose, bytes, fileExpiresAfterSeconds } = upload;
    const content = this.#contentOf(parts, md5);
    const details = async () => ({ purpose, expiresAfterSeconds: fileExpiresAfterSeconds });
    const publish = async (file: StoredFile) => {
      const isCompleted = await store.completeUploadIfPending(upload, file, clock.nowMs());
      if (!isCompleted) throw await this.#notTaken(upload, file.blobKey);
    };
    try {
      const incoming = { filename, content, details, origin, requestBytes: null };
      return await files.store(project, incoming, { maxBytes: bytes, publish });
    } catch (cause) {
      // The sweep takes the parts as soon as somebody else has ended the upload.
      if (cause instanceof BlobNotFound) await this.#findPending(upload);
      throw cause;
    }
  }

  async *#contentOf(parts: readonly UploadPart[], md5: string | null): AsyncGenerator<Buffer> {
    const hash = md5 === null ? null : createHash("md5");
    for (const { blobKey, bytes } of parts) {
      for await (const chunk of this.#deps.blobs.read(blobKey, { start: 0, end: bytes })) {
        hash?.update(chunk as Buffer);
        yield chunk as Buffer;
      }
    }
    const found = hash?.digest("hex");
    if (found === undefined || found === md5?.toLowerCase()) return;
    throw new PublicError(
      "invalid_request",
      `The MD5 of the parts together is '${found}', but the request says '${md5}'.`,
      { param: "md5" },
    );
  }

  /** Why the store did not take a part, or the file. */
  async #notTaken(asked: ScopedId<"upload">, blobKey: string): Promise<PublicError> {
    const upload = await this.#find(asked);
    return upload.status === "pending" ? blobGivenUp(blobKey) : hasEnded(upload);
  }

  /** With the status that it has by the clock, which may be ahead of its row. */
  async #find(asked: ScopedId<"upload">): Promise<Upload> {
    const { store, clock } = this.#deps;
    const upload = await store.findUpload(asked);
    if (upload === null) throw noSuchUpload(asked.id);
    const isOver = upload.status === "pending" && upload.expiresAtMs <= clock.nowMs();
    return isOver ? { ...upload, status: "expired" } : upload;
  }

  async #findPending(asked: ScopedId<"upload">): Promise<Upload> {
    const upload = await this.#find(asked);
    if (upload.status !== "pending") throw hasEnded(upload);
    return upload;
  }
}

/** The content of a part, as long as nothing is wrong with it or with the rest of the request. */
async function* bounded({ content, details }: IncomingPart): AsyncGenerator<Buffer> {
  let bytes = 0;
  for await (const chunk of content) {
    bytes += chunk.length;
    if (bytes > PART_MAX_BYTES) {
      throw new PublicError(
        "invalid_request",
        `The part is too large: a part may have at most ${PART_MAX_BYTES} bytes.`,
        { param: "data" },
      );
    }
    yield chunk;
  }
  await details();
}

function chosenParts(
  upload: Upload,
  parts: readonly UploadPart[],
  partIds: readonly UntrustedId<"part">[],
): UploadPart[] {
  const known = new Map<UntrustedId<"part">, UploadPart>(parts.map((part) => [part.id, part]));
  const chosen = new Map<UntrustedId<"part">, UploadPart>();
  for (const id of partIds) {
    const part = known.get(id);
    if (part === undefined) {
      throw wrongParts(`The part '${truncate(id)}' does not belong to the upload '${upload.id}'.`);
    }
    if (chosen.has(id)) throw wrongParts(`The part '${id}' is listed more than once.`);
    chosen.set(id, part);
  }
  const inOrder = [...chosen.values()];
  const bytes = inOrder.reduce((sum, part) => sum + part.bytes, 0);
  if (bytes === upload.bytes) return inOrder;
  throw wrongParts(
    `The parts have ${bytes} bytes together, but the upload was created for ${upload.bytes} bytes.`,
  );
}

function assertBytes(bytes: number, maxBytes: number): void {
  if (bytes <= maxBytes) return;
  throw new PublicError(
    "integer_too_large",
    `Invalid 'bytes': integer above maximum value. Expected a value <= ${maxBytes}, but got ${bytes} instead.`,
    { param: "bytes" },
  );
}

const noSuchUpload = (id: string) =>
  new PublicError("not_found", `No such Upload object: ${truncate(id)}`, { param: "id" });

const wrongParts = (message: string) =>
  new PublicError("invalid_request", message, { param: "part_ids" });

/** A client whose answer got lost on the way learns here which file its upload became. */
const hasEnded = ({ id, status, fileId }: Upload) =>
  new PublicError("invalid_request", `The upload '${id}' is already ${status}${madeInto(fileId)}.`);

const madeInto = (fileId: FileId | null) => (fileId === null ? "" : `: its file is '${fileId}'`);
