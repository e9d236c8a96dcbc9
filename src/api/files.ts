/**
 * The operations of a client on files. An upload is checked while it streams to its blob (`incoming-file.ts`). The blob must
 * be durable before its row exists. A blob without a row is garbage, which the sweep finds; a row without a blob would
 * promise bytes that are lost.
 */
import { once } from "node:events";
import type { Readable } from "node:stream";
import { type FileId, newFileId, type ScopedId, type StoredFile } from "../batch/batch.ts";
import { ContentCheck } from "../batch/content.ts";
import { type RulesOf, shorter } from "../batch/project.ts";
import { type BlobIntents, IntentRevoked } from "../blobs/blob-intents.ts";
import {
  BlobNotFound,
  type BlobPart,
  type Blobs,
  BlobsUnavailable,
  type ByteRange,
  type LinkHeaders,
} from "../blobs/blobs.ts";
import { type Clock, every } from "../clock.ts";
import { DOWNLOADABLE_PURPOSES } from "../contract/file.ts";
import { PublicError } from "../errors.ts";
import type { MemoryBudget } from "../resources/memory-budget.ts";
import { timeForMore } from "../resources/time-slice.ts";
import type { FileQuery } from "../store/files.ts";
import type { ReceiptFor } from "../store/idempotency.ts";
import type { Page } from "../store/page.ts";
import type { Store } from "../store/store.ts";
import type { Log } from "../telemetry/log.ts";
import { during, type Tracing } from "../telemetry/tracing.ts";
import { truncate } from "../text/truncate.ts";
import type { BytesUnderWay } from "./bytes-under-way.ts";
import { checkedContent, type IncomingFile, openIncoming } from "./incoming-file.ts";
import type { Projects } from "./projects.ts";
import { withinQuotas } from "./quotas.ts";
import { countedIn } from "./upload-memory.ts";

/** The lifetime of batch input when the client names none. */
const BATCH_INPUT_KEPT_SECONDS = 2_592_000;

/** The age of a file that no bucket whose copies are behind can still be without. */
export const BEHIND_MS = 10 * 60 * 1000;

/** A reading that goes on is looked at so often. Most have ended before the first look. */
const LOOK_EVERY_MS = 10_000;

export interface FilesDeps {
  readonly store: Store;
  readonly blobs: Blobs;
  readonly intents: BlobIntents;
  readonly memory: MemoryBudget;
  readonly clock: Clock;
  readonly log: Log;
  readonly tracing: Tracing;
  /** The most bytes that the input of a batch may have. */
  readonly maxFileBytes: () => number;
  /** The most bytes of any file that comes in one piece. */
  readonly maxBytesAtOnce: () => number;
  readonly rulesOf: RulesOf;
  readonly bytesUnderWay: BytesUnderWay;
  readonly projects: Pick<Projects, "assertTakesData">;
  /** Makes the engine look at once for what can be removed. It only saves time: the engine finds it without. */
  readonly nudge: () => void;
}

/** A file whose bytes have been checked, before it has an id and a blob. */
export type ReceivedFile = Omit<StoredFile, "id" | "blobKey">;

export interface Storing {
  readonly maxBytes: number;
  /** The blobs that have the content already, one after another. */
  readonly parts?: readonly BlobPart[];
  /** Publishes the file once its blob is durable. The blob is removed if this throws. */
  readonly publish: (file: StoredFile) => Promise<void>;
}

export class Files {
  readonly #deps: FilesDeps;

  constructor(deps: FilesDeps) {
    this.#deps = deps;
  }

  async receive(
    project: string,
    incoming: IncomingFile,
    receiptFor?: ReceiptFor<StoredFile>,
  ): Promise<StoredFile> {
    const { store, clock, projects, maxBytesAtOnce } = this.#deps;
    const startedAtMs = incoming.startedAtMs ?? clock.elapsedMs();
    return this.store(project, incoming, {
      maxBytes: maxBytesAtOnce(),
      publish: async (file) => {
        // An upload may take longer than the deletion of its project goes on.
        projects.assertTakesData(project, startedAtMs);
        const { quotas } = this.#deps.rulesOf(project);
        const isPublished = await withinQuotas(project, () =>
          store.insertFileIfDeclared(file, { receipt: receiptFor?.(file), quotas }),
        );
        if (!isPublished) throw intentRevoked(file.blobKey);
      },
    });
  }

  /** Returns the file that {@link receive} would make, or throws its refusal, without storing anything. */
  async inspect(project: string, incoming: IncomingFile): Promise<ReceivedFile> {
    const check = new ContentCheck();
    const { memory, clock, maxFileBytes, maxBytesAtOnce } = this.#deps;
    using room = memory.open("requests", project);
    const limits = { maxBytes: maxBytesAtOnce(), maxFileBytes: maxFileBytes() };
    const opened = await openIncoming(incoming, limits);
    const checked = checkedContent(opened, check);
    const content = countedIn(room, checked, { maxBytes: opened.windowBytes, clock });
    while (!(await content.next()).done);
    return await this.#received(project, opened, check);
  }

  async store(project: string, incoming: IncomingFile, storing: Storing): Promise<StoredFile> {
    const { tracing } = this.#deps;
    const { requestId, traceparent: parent } = incoming.origin;
    const id = newFileId();
    const attributes = { "batchd.file.id": id, "batchd.request.id": requestId };
    const span = tracing.start("file.upload", { parent, kind: "server", attributes });
    const origin = { requestId, traceparent: span.traceparent ?? parent };
    return during(
      span,
      () => this.#store(project, { ...incoming, origin }, { id, ...storing }),
      ({ bytes, purpose }) => ({ "batchd.file.bytes": bytes, "batchd.file.purpose": purpose }),
    );
  }

  async #store(
    project: string,
    incoming: IncomingFile,
    { id, maxBytes, parts, publish }: Storing & { readonly id: FileId },
  ): Promise<StoredFile> {
    const { blobs, intents, memory, clock, log, maxFileBytes, bytesUnderWay } = this.#deps;
    const blobKey = `files/${id}`;
    const check = new ContentCheck();
    using room = memory.open("requests", project);
    const file = await intents.during([blobKey], async () => {
      const limits = { maxBytes, maxFileBytes: maxFileBytes() };
      const opened = await openIncoming(incoming, limits);
      const checked = checkedContent(opened, check);
      // Parts count already.
      const content = parts === undefined ? bytesUnderWay.counted(project, checked) : checked;
      const heldBytes = blobs.heldByPutBytes + opened.windowBytes;
      const counted = countedIn(room, content, { maxBytes: heldBytes, clock });
      if (parts === undefined || opened.isUnpacked) await blobs.put(blobKey, counted);
      else await blobs.join(blobKey, parts, counted);
      const stored = { id, blobKey, ...(await this.#received(project, opened, check)) };
      // The disk may be done with hundreds of files in the same moment, and each commit holds up the event loop.
      await timeForMore();
      await publish(stored);
      return stored;
    });
    const { requestId } = incoming.origin;
    const { purpose, bytes } = file;
    log.info({ file: id, project, purpose, bytes, request_id: requestId }, "file.stored");
    return file;
  }

  /** Finds a file. A deleted or expired file gets the same error as one that never existed. */
  async find(asked: ScopedId<"file">): Promise<StoredFile> {
    const file = await this.#deps.store.findFile(asked);
    if (file !== null && !hasExpired(file, this.#deps.clock.nowMs())) return file;
    throw noSuchFile(asked.id, "id");
  }

  async list(query: FileQuery): Promise<Page<StoredFile>> {
    const page = await this.#deps.store.listFiles(query);
    if (page === null) throw noSuchFile(query.after ?? "", "after");
    return page;
  }

  async findDownloadable(asked: ScopedId<"file">): Promise<StoredFile> {
    const file = await this.find(asked);
    if (!DOWNLOADABLE_PURPOSES.includes(file.purpose)) {
      throw new PublicError(
        "invalid_request",
        `Not allowed to download files of purpose: ${file.purpose}`,
      );
    }
    return file;
  }

  /**
   * Opens the content. Resolves once the first bytes are there, so that a fault can still become an error answer. The reading
   * ends with an error when the file is deleted.
   */
  async openContent(file: StoredFile, range: ByteRange): Promise<Readable> {
    const content = this.#deps.blobs.read(file.blobKey, range);
    try {
      await once(content, "readable");
    } catch (cause) {
      if (!(cause instanceof BlobNotFound)) throw cause;
      // The storage is behind, or the file was deleted after its row was read.
      if (await this.#isExpected(file))
        throw new BlobsUnavailable(cause.message, { cause, isRefusal: false });
      throw await this.#lostOrDeleted(file, cause);
    }
    this.#endWithFile(file, content);
    return content;
  }

  /**
   * A client may read as slowly as it likes, and a file that is open keeps its bytes on the disk. With downloads of deleted files, a
   * project could fill the disk, whatever its quota.
   */
  #endWithFile(file: StoredFile, content: Readable): void {
    if (content.closed) return;
    const { store, clock } = this.#deps;
    const look = async () => {
      // A store that is away says nothing.
      const found = await store.findFile(file).catch(() => file);
      if (found === null) content.destroy(noSuchFile(file.id, "id"));
    };
    content.once(
      "close",
      every(clock, LOOK_EVERY_MS, () => void look()),
    );
  }

  /** A file whose row is still there has lost its content. Its client needs another file, and its operator a backup. */
  async #lostOrDeleted(file: StoredFile, cause: BlobNotFound): Promise<PublicError> {
    const { store, log } = this.#deps;
    const { id, project, blobKey: blob } = file;
    if ((await store.findFile(file)) === null) return noSuchFile(id, "id", cause);
    log.error({ file: id, project, blob }, "file.lost");
    const message = `The content of the file ${id} is missing in the storage of this server.`;
    return new PublicError("not_found", message, { param: "id", cause });
  }

  /** Whether the storage may find a file later that it does not find now. */
  async #isExpected(file: StoredFile): Promise<boolean> {
    const { blobs, store, clock } = this.#deps;
    const isYoung = clock.nowMs() - file.createdAtMs < BEHIND_MS;
    return blobs.mayBeBehind && isYoung && (await store.findFile(file)) !== null;
  }

  /** Returns an address from which anyone can read the content for a while; null if clients get it from this server. */
  linkTo(file: StoredFile, headers: LinkHeaders): Promise<string | null> {
    return this.#deps.blobs.linkTo(file.blobKey, headers);
  }

  async delete(asked: ScopedId<"file">): Promise<FileId> {
    const { store, log, nudge } = this.#deps;
    const { id, project } = await this.find(asked);
    const isDeleted = await store.deleteFileIfPresent({ project, id });
    if (!isDeleted) throw noSuchFile(id, "id");
    log.info({ file: id, project }, "file.deleted");
    nudge();
    return id;
  }

  async #received(
    project: string,
    incoming: IncomingFile,
    check: ContentCheck,
  ): Promise<ReceivedFile> {
    const { purpose, expiresAfterSeconds } = await incoming.details();
    const createdAtMs = this.#deps.clock.nowMs();
    const keptSeconds = shorter(
      expiresAfterSeconds ?? (purpose === "batch" ? BATCH_INPUT_KEPT_SECONDS : null),
      this.#deps.rulesOf(project).fileLifetimeSeconds,
    );
    return {
      project,
      purpose,
      filename: incoming.filename,
      bytes: check.bytes,
      sha256: check.report().sha256,
      createdAtMs,
      expiresAtMs: keptSeconds === null ? null : createdAtMs + keptSeconds * 1000,
      traceparent: incoming.origin.traceparent,
      ...(incoming.copiedFrom && { copiedFrom: incoming.copiedFrom }),
    };
  }
}

/**
 * The error for a blob whose intent ran out, after minutes without access to the store. The client may send the file
 * again.
 */
export const intentRevoked = (blobKey: string) =>
  new PublicError("unavailable", "The server could not store this in time. Please try again.", {
    cause: new IntentRevoked(blobKey),
  });

const hasExpired = ({ expiresAtMs }: StoredFile, nowMs: number) =>
  expiresAtMs !== null && expiresAtMs <= nowMs;

const noSuchFile = (id: string, param: "id" | "after", cause?: BlobNotFound): PublicError =>
  new PublicError("not_found", `No such File object: ${truncate(id)}`, { param, cause });
