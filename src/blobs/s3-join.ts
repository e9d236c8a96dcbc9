/**
 * Makes an object of other objects. The server copies their bytes, so they need not be written again. A part of an object
 * must have 5 MiB, except the last one. Smaller sources are therefore uploaded, together with the next one where they need
 * more bytes. Ranges of a source are not copied, because the parts of a client mostly have one size.
 *
 * The caller reads the bytes at the same time to check them, and the object must not appear before the check has ended.
 */
import { createHash } from "node:crypto";
import {
  AbortMultipartUploadCommand,
  type CompletedPart,
  CompleteMultipartUploadCommand,
  CreateMultipartUploadCommand,
  type CreateMultipartUploadCommandInput,
  type S3Client,
  UploadPartCommand,
  UploadPartCopyCommand,
} from "@aws-sdk/client-s3";
import type { Semaphore } from "../resources/semaphore.ts";
import { type BlobPart, BlobsUnavailable } from "./blobs.ts";
import { isStored } from "./s3-client.ts";
import { answered, blobError, isNotImplemented, unavailable } from "./s3-error.ts";

const MIN_PART_BYTES = 5 * 1024 * 1024;
const MAX_PARTS = 10_000;
const COPIES_AT_ONCE = 4;

/** One part of the new object. The server copies the source, or the bytes are uploaded where there is none. */
interface Piece {
  readonly bytes: number;
  readonly sourceKey: string | null;
}

/** Plans the parts of an object. Returns null if all bytes have to be uploaded. */
export function planPieces(sources: readonly BlobPart[]): Piece[] | null {
  const parts = sources.filter(({ bytes }) => bytes > 0);
  const pieces: Piece[] = [];
  let gathered = 0;
  const upload = (bytes: number) => {
    pieces.push({ bytes, sourceKey: null });
    gathered -= bytes;
  };
  for (const [i, { key, bytes }] of parts.entries()) {
    const isLargeEnough = bytes >= MIN_PART_BYTES || i === parts.length - 1;
    if (gathered === 0 && isLargeEnough) {
      pieces.push({ bytes, sourceKey: key });
      continue;
    }
    gathered += bytes;
    while (gathered >= 2 * MIN_PART_BYTES) upload(MIN_PART_BYTES);
    // With an end of its own, the next source can be copied.
    if (gathered >= MIN_PART_BYTES) upload(gathered);
  }
  if (gathered > 0) upload(gathered);
  const isUseful = pieces.length > 1 && pieces.some(({ sourceKey }) => sourceKey !== null);
  return isUseful && pieces.length <= MAX_PARTS ? pieces : null;
}

interface Target {
  /**
   * A client that sends no CRC-32. All parts of an object must have one, or none, and some servers answer a copy with a
   * wrong one (versitygw 1.8 does if the source was uploaded in parts).
   */
  readonly client: S3Client;
  /** The bucket and the name of the object, and the way to encrypt it. */
  readonly object: CreateMultipartUploadCommandInput;
  /** The name of an object, with the prefix of the deployment. */
  readonly pathOf: (key: string) => string;
  readonly connections: Semaphore;
}

/** What became of a join: the server does not know how to copy, or refuses to copy these objects, or has done it. */
type Joined = "joined" | "cannot_copy" | "may_not_copy";

/**
 * Resolves before it has read any of the content if the server does not copy. An error of `content` is thrown on, and
 * nothing is stored.
 */
export async function joinObjects(
  target: Target,
  pieces: readonly Piece[],
  content: AsyncIterable<Uint8Array>,
): Promise<Joined> {
  const join = await Join.begin(target, pieces);
  try {
    // The others are copied only if the first one was: the content can still be uploaded.
    const first = await join.copyFirst();
    if (first !== "joined") {
      await join.abort();
      return first;
    }
    join.copyOthers();
    for await (const upload of uploadsIn(pieces, join.whileCopying(content))) {
      await join.upload(upload);
    }
    await join.copied();
    await join.complete();
    return "joined";
  } catch (error) {
    await join.abort();
    throw error;
  }
}

class Join {
  readonly #target: Target;
  readonly #uploadId: string;
  readonly #copies: { readonly number: number; readonly sourceKey: string }[];
  readonly #bytes: number;
  readonly #parts: CompletedPart[] = [];
  readonly #aborting = new AbortController();
  /** Ends with the last copy, whether or not one has failed. */
  #copying: Promise<unknown> = Promise.resolve();
  #failure: { readonly cause: unknown } | null = null;

  private constructor(target: Target, uploadId: string, pieces: readonly Piece[]) {
    this.#target = target;
    this.#bytes = pieces.reduce((sum, { bytes }) => sum + bytes, 0);
    this.#uploadId = uploadId;
    this.#copies = pieces.flatMap(({ sourceKey }, i) =>
      sourceKey === null ? [] : [{ number: i + 1, sourceKey }],
    );
  }

  static async begin(target: Target, pieces: readonly Piece[]): Promise<Join> {
    const begin = target.client.send(new CreateMultipartUploadCommand(target.object));
    const begun = await answered(begin);
    return new Join(target, begun.UploadId ?? "", pieces);
  }

  async copyFirst(): Promise<Joined> {
    try {
      await this.#copyNext();
      return "joined";
    } catch (error) {
      if (!(error instanceof BlobsUnavailable)) throw error;
      if (isNotImplemented(error.cause)) return "cannot_copy";
      // Some servers copy only what is not encrypted, or need a right of its own for it.
      if (error.isRefusal) return "may_not_copy";
      throw error;
    }
  }

  /** Begins to copy. A copy that fails ends the other ones, and the join. */
  copyOthers(): void {
    const copyAll = async () => {
      while (this.#copies.length > 0 && !this.#aborting.signal.aborted) await this.#copyNext();
    };
    const fail = (cause: unknown) => {
      this.#failure ??= { cause };
      this.#aborting.abort();
    };
    const copies = Array.from({ length: COPIES_AT_ONCE }, () => copyAll().catch(fail));
    this.#copying = Promise.all(copies);
  }

  /** Resolves when every copy is there. */
  async copied(): Promise<void> {
    await this.#copying;
    if (this.#failure !== null) throw this.#failure.cause;
  }

  /** Yields the content, and throws as soon as a copy has failed: the rest would be read for nothing. */
  async *whileCopying(content: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
    for await (const chunk of content) {
      if (this.#failure !== null) throw this.#failure.cause;
      yield chunk;
    }
  }

  async upload({ number, bytes }: { readonly number: number; readonly bytes: Buffer }) {
    const { client, connections } = this.#target;
    const ContentMD5 = createHash("md5").update(bytes).digest("base64");
    const command = new UploadPartCommand({ ...this.#partOf(number), Body: bytes, ContentMD5 });
    const sent = connections.run(() => client.send(command, this.#sending));
    this.#add(number, await answered(sent));
  }

  async complete(): Promise<void> {
    const Parts = this.#parts.sort((a, b) => (a.PartNumber ?? 0) - (b.PartNumber ?? 0));
    const command = new CompleteMultipartUploadCommand({
      ...this.#object,
      MultipartUpload: { Parts },
    });
    const { client, object } = this.#target;
    await client.send(command).catch(async (error: unknown) => {
      if (!(await isStored(client, object, { bytes: this.#bytes, error }))) {
        throw unavailable(error);
      }
    });
  }

  /** Removes what was stored. A part that arrives after that would stay, so the requests under way end before. */
  async abort(): Promise<void> {
    this.#aborting.abort();
    await this.#copying;
    // The sweep aborts what cannot be aborted now.
    const command = new AbortMultipartUploadCommand(this.#object);
    await this.#target.client.send(command).catch(() => {});
  }

  async #copyNext(): Promise<void> {
    const { client, object, pathOf, connections } = this.#target;
    const next = this.#copies.shift();
    if (next === undefined) return;
    const { number, sourceKey } = next;
    const command = new UploadPartCopyCommand({
      ...this.#partOf(number),
      CopySource: `${object.Bucket}/${pathOf(sourceKey)}`,
    });
    const sent = connections.run(() => client.send(command, this.#sending));
    const copied = await sent.catch((error: unknown) => {
      throw blobError(error, sourceKey);
    });
    this.#add(number, copied.CopyPartResult ?? {});
  }

  #add(PartNumber: number, { ETag }: Pick<CompletedPart, "ETag">): void {
    this.#parts.push({ PartNumber, ETag });
  }

  get #object() {
    const { Bucket, Key } = this.#target.object;
    return { Bucket, Key, UploadId: this.#uploadId };
  }

  get #sending() {
    return { abortSignal: this.#aborting.signal };
  }

  #partOf(PartNumber: number) {
    return { ...this.#object, PartNumber };
  }
}

/** Reads all of the content, and yields the pieces that have to be uploaded, with the numbers of their parts. */
async function* uploadsIn(pieces: readonly Piece[], content: AsyncIterable<Uint8Array>) {
  let index = 0;
  let passed = 0;
  let gathered: Uint8Array[] = [];
  for await (const chunk of content) {
    for (let at = 0; at < chunk.length; ) {
      const piece = pieces[index];
      if (piece === undefined) throw new Error("the content is longer than its parts");
      const taken = Math.min(piece.bytes - passed, chunk.length - at);
      if (piece.sourceKey === null) gathered.push(chunk.subarray(at, at + taken));
      at += taken;
      passed += taken;
      if (passed < piece.bytes) continue;
      index++;
      passed = 0;
      if (piece.sourceKey === null) yield { number: index, bytes: Buffer.concat(gathered) };
      gathered = [];
    }
  }
  if (index < pieces.length) throw new Error("the content is shorter than its parts");
}
