/**
 * The operations of a client on uploads, which bring a large file in parts. Each part is a blob of its own. Completing
 * an upload joins the listed parts, in their order, to the blob of a new file. All bytes are read for the usual checks,
 * and the storage copies them by itself where it can.
 *
 * One guarded commit ends the upload and publishes the file. So exactly one of several clients that complete, cancel or
 * come too late can succeed. The sweep removes the parts of an upload that has ended.
 */
import { createHash } from "node:crypto";
import {
  type FileId,
  newPartId,
  newUploadId,
  type ScopedId,
  type StoredFile,
  type UntrustedId,
  type UploadId,
} from "../batch/batch.ts";
import { BlobNotFound, BlobsUnavailable, BlobTooShort } from "../blobs/blobs.ts";
import type { FilePurpose } from "../contract/file.ts";
import { UPLOAD_LIFETIME_MS } from "../contract/upload.ts";
import { clientGone, integerTooLarge, PublicError } from "../errors.ts";
import { OneByOne } from "../one-by-one.ts";
import { timeForMore } from "../resources/time-slice.ts";
import type { Receipt, ReceiptFor } from "../store/idempotency.ts";
import type { Upload, UploadPart } from "../store/uploads.ts";
import type { Origin } from "../telemetry/tracing.ts";
import { truncate } from "../text/truncate.ts";
import { BEHIND_MS, type Files, type FilesDeps, intentRevoked } from "./files.ts";
import { withinQuotas } from "./quotas.ts";
import { countedIn } from "./upload-memory.ts";
import {
  chosenParts,
  contentOfPart,
  type IncomingPart,
  lostPart,
  tooManyParts,
} from "./upload-parts.ts";

export interface UploadsDeps extends Omit<FilesDeps, "tracing" | "maxBytesAtOnce" | "projects"> {
  readonly files: Files;
  readonly maxUploadBytes: () => number;
}

export interface UploadRequest {
  readonly filename: string;
  readonly purpose: FilePurpose;
  readonly bytes: number;
  readonly mimeType: string;
  /** The seconds from the creation of the new file to its expiry; null means the server's default. */
  readonly fileExpiresAfterSeconds: number | null;
}

/** The parts of the new file, in their order. */
export interface Completion {
  readonly partIds: readonly UntrustedId<"part">[];
  /** The digest of the whole file, in hexadecimal; null without one. */
  readonly md5: string | null;
  readonly origin: Origin;
  /** Aborts when the client is gone. */
  readonly disconnected: AbortSignal;
}

export interface CompletedUpload {
  readonly upload: Upload;
  readonly file: StoredFile;
}

interface Assembly {
  readonly completion: Completion;
  readonly receiptOf: (file: StoredFile) => Receipt | undefined;
}

export class Uploads {
  readonly #deps: UploadsDeps;
  readonly #completions = new OneByOne<UploadId>();

  constructor(deps: UploadsDeps) {
    this.#deps = deps;
  }

  async create(
    project: string,
    request: UploadRequest,
    receiptFor?: ReceiptFor<Upload>,
  ): Promise<Upload> {
    const { store, clock, log, maxFileBytes, maxUploadBytes } = this.#deps;
    // A batch has the smaller limit. A check at this point spares the client the upload of all parts.
    const maxBytes =
      request.purpose === "batch" ? Math.min(maxFileBytes(), maxUploadBytes()) : maxUploadBytes();
    if (request.bytes > maxBytes) throw integerTooLarge("bytes", request.bytes, maxBytes);
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
    const { quotas } = this.#deps.rulesOf(project);
    await withinQuotas(project, () =>
      store.insertUpload(upload, { receipt: receiptFor?.(upload), quotas }),
    );
    log.info({ upload: upload.id, project, bytes: upload.bytes }, "upload.created");
    return upload;
  }

  async addPart(asked: ScopedId<"upload">, incoming: IncomingPart): Promise<UploadPart> {
    const { store, blobs, intents, memory, clock, log, bytesUnderWay } = this.#deps;
    const { id: uploadId, project } = await this.#findPending(asked);
    using room = memory.open("requests", project);
    const id = newPartId();
    const blobKey = `parts/${id}`;
    const part = await intents.during([blobKey], async () => {
      const counting = { maxBytes: blobs.heldByPutBytes, clock };
      const content = bytesUnderWay.counted(project, contentOfPart(incoming));
      const { bytes } = await blobs.put(blobKey, countedIn(room, content, counting));
      const stored: UploadPart = { id, uploadId, bytes, blobKey, createdAtMs: clock.nowMs() };
      const { quotas } = this.#deps.rulesOf(project);
      await timeForMore();
      const outcome = await withinQuotas(project, () =>
        store.insertPartIfPending(stored, { project, quotas }),
      );
      if (outcome === "full") throw tooManyParts(uploadId);
      if (outcome === "refused") throw await this.#notTaken(asked, blobKey);
      return stored;
    });
    log.debug({ upload: uploadId, part: id, bytes: part.bytes }, "part.stored");
    return part;
  }

  async complete(
    asked: ScopedId<"upload">,
    completion: Completion,
    receiptFor?: ReceiptFor<CompletedUpload>,
  ): Promise<CompletedUpload> {
    const { id } = await this.#findPending(asked);
    // Each completion writes all bytes of the upload, and one at most can succeed. So the others wait for its end.
    return this.#completions.run(id, async () => {
      if (completion.disconnected.aborted) throw clientGone("its turn");
      return this.#complete(asked, completion, receiptFor);
    });
  }

  async #complete(
    asked: ScopedId<"upload">,
    completion: Completion,
    receiptFor?: ReceiptFor<CompletedUpload>,
  ): Promise<CompletedUpload> {
    const { store, log, nudge } = this.#deps;
    const upload = await this.#findPending(asked);
    const { id, project } = upload;
    const parts = await chosenParts(upload, store.partPages(id), completion.partIds);
    const completed = (file: StoredFile): CompletedUpload => ({
      upload: { ...upload, status: "completed", fileId: file.id },
      file,
    });
    const file = await this.#assemble(upload, parts, {
      completion,
      receiptOf: (stored) => receiptFor?.(completed(stored)),
    });
    const { requestId } = completion.origin;
    log.info({ upload: id, project, file: file.id, request_id: requestId }, "upload.completed");
    nudge();
    return completed(file);
  }

  /** Cancels an upload. A repeated call succeeds; an upload that ended otherwise cannot be cancelled. */
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
    { completion: { md5, origin }, receiptOf }: Assembly,
  ): Promise<StoredFile> {
    const { store, files } = this.#deps;
    const { project, filename, purpose, bytes, fileExpiresAfterSeconds } = upload;
    const content = this.#contentOf(parts, md5);
    const details = async () => ({ purpose, expiresAfterSeconds: fileExpiresAfterSeconds });
    const publish = async (file: StoredFile) => {
      const { quotas } = this.#deps.rulesOf(project);
      const isCompleted = await withinQuotas(project, () =>
        store.completeUploadIfPending(upload, file, { receipt: receiptOf(file), quotas }),
      );
      if (!isCompleted) throw await this.#notTaken(upload, file.blobKey);
    };
    try {
      const knownPurpose = () => purpose;
      const incoming = { filename, content, knownPurpose, details, origin, requestBytes: null };
      const sources = parts.map((part) => ({ key: part.blobKey, bytes: part.bytes }));
      return await files.store(project, incoming, { maxBytes: bytes, publish, parts: sources });
    } catch (cause) {
      if (!(cause instanceof BlobNotFound || cause instanceof BlobTooShort)) throw cause;
      // The sweep deletes the parts as soon as another request has ended the upload. That end is the better error.
      await this.#findPending(upload);
      throw this.#partLost(upload, parts, cause);
    }
  }

  /** A storage that is behind finds a young part later. Any other one does not come back, so its client has to add it again. */
  #partLost(
    { id, project }: Upload,
    parts: readonly UploadPart[],
    cause: BlobNotFound | BlobTooShort,
  ): Error {
    const { blobs, clock, log } = this.#deps;
    const part = parts.find(({ blobKey }) => blobKey === cause.key);
    if (part === undefined) return cause;
    const mayCome = blobs.mayBeBehind && cause instanceof BlobNotFound;
    if (mayCome && clock.nowMs() - part.createdAtMs < BEHIND_MS) {
      return new BlobsUnavailable(cause.message, { cause, isRefusal: false });
    }
    log.error({ upload: id, project, blob: cause.key }, "part.lost");
    return lostPart(part.id);
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

  /** Returns the reason for which the store refused a part or the file. */
  async #notTaken(asked: ScopedId<"upload">, blobKey: string): Promise<PublicError> {
    const upload = await this.#find(asked);
    return upload.status === "pending" ? intentRevoked(blobKey) : hasEnded(upload);
  }

  /** Finds an upload. Its status follows the clock, because the row may still say `pending` after the expiry. */
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

const noSuchUpload = (id: string) =>
  new PublicError("not_found", `No such Upload object: ${truncate(id)}`, { param: "id" });

/**
 * The error for an upload that has ended. A client that lost the answer learns from it which file its upload became.
 */
const hasEnded = ({ id, status, fileId }: Upload) =>
  new PublicError("invalid_request", `The upload '${id}' is already ${status}${madeInto(fileId)}.`);

const madeInto = (fileId: FileId | null) => (fileId === null ? "" : `: its file is '${fileId}'`);
