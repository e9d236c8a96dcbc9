/**
 * Keeps blobs as objects in an S3 bucket, or on another server that speaks the protocol.
 *
 * An object appears whole once it is durable, so a key names all of its bytes or does not exist. A large blob is uploaded in
 * parts, and one request at the end makes an object of them. Several processes may share a bucket and a prefix. So an
 * unfinished upload may only be removed when the store proves that its writer is dead. Keys have no part that begins
 * with a dot, so the adapter uses such a name for itself.
 */
import { Readable } from "node:stream";
import {
  DeleteObjectCommand,
  DeleteObjectsCommand,
  GetObjectCommand,
  ListObjectsV2Command,
  PutObjectCommand,
  paginateListObjectsV2,
  type S3Client,
} from "@aws-sdk/client-s3";
import { Upload } from "@aws-sdk/lib-storage";
import { getSignedUrl } from "@aws-sdk/s3-request-presigner";
import { type Clock, timeLimit } from "../clock.ts";
import { Semaphore } from "../resources/semaphore.ts";
import {
  assertKey,
  assertPrefix,
  type BlobInfo,
  type BlobPart,
  type Blobs,
  type ByteRange,
  type FindGarbage,
  type LinkHeaders,
  type WriteHints,
} from "./blobs.ts";
import { CountedSource } from "./counted-source.ts";
import {
  encryptionOf,
  isStored,
  type OnS3Request,
  openS3Client,
  type S3Options,
} from "./s3-client.ts";
import { answered, isGone, listed, unavailable } from "./s3-error.ts";
import { joinObjects, planPieces } from "./s3-join.ts";
import { readObject } from "./s3-reading.ts";
import { removeUnfinished } from "./s3-unfinished.ts";

/** Each write is a request, which takes tens of milliseconds and costs money. */
const WRITE_HINTS: WriteHints = { minIntervalMs: 2_000, fullBytes: 4 * 1024 * 1024 };
/** The number of parts of a blob on their way: one uploads while the next one fills. */
const PARTS_AT_ONCE = 2;
/** Sixteen reads of half a megabyte, with a latency of 20 ms, are more than a merge can take. */
const READS_AHEAD = 16;
/**
 * The most connections for requests that take their time from the network alone. The others depend on a client: each
 * upload or download has connections of its own, so a slow one holds up nothing else.
 */
const SHORT_CONNECTIONS = 32;
/** The most keys that S3 takes in one request. */
const DELETED_AT_ONCE = 1_000;
const PING_NAME = ".ping";
const PING = "ping";
const PING_TIMEOUT_MS = 5_000;

/** A copy within the bucket may take seconds. Copies have connections of their own, so that no journal waits for them. */
const JOIN_CONNECTIONS = 8;
/** Servers refuse addresses of more than about 8 kB, and a name may be long. */
const MAX_LINKED_NAME = 4_096;

export class S3Blobs implements Blobs {
  readonly writeHints = WRITE_HINTS;
  readonly heldByPutBytes: number;
  readonly maxReadsAhead = READS_AHEAD;
  readonly mayBeBehind = true;
  readonly #client: S3Client;
  /** Sends no CRC-32. It joins objects, and signs links, which would name the CRC-32 of an empty body. */
  readonly #plainClient: S3Client;
  readonly #connections = new Semaphore(SHORT_CONNECTIONS);
  readonly #joinConnections = new Semaphore(JOIN_CONNECTIONS);
  readonly #clock: Clock;
  readonly #bucket: string;
  readonly #prefix: string;
  readonly #partBytes: number;
  readonly #linkSeconds: number | undefined;
  /** It is false once the server has refused to copy. */
  #canCopy = true;
  readonly #encryption: ReturnType<typeof encryptionOf>;

  constructor(options: S3Options, clock: Clock, onRequest: OnS3Request = () => {}) {
    this.#clock = clock;
    const { bucket, prefix, partBytes, encryption } = options;
    this.#client = openS3Client(options, onRequest);
    this.#bucket = bucket;
    this.#prefix = prefix;
    this.#partBytes = partBytes;
    this.#plainClient = openS3Client({ ...options, sendsChecksums: false }, onRequest);
    this.#linkSeconds = options.linkSeconds;
    // One more part fills while the others are on their way.
    this.heldByPutBytes = (PARTS_AT_ONCE + 1) * partBytes;
    this.#encryption = encryptionOf(encryption);
  }

  async put(key: string, source: AsyncIterable<Uint8Array>): Promise<{ bytes: number }> {
    const counted = new CountedSource(source);
    const upload = new Upload({
      client: this.#client,
      params: { ...this.#object(key), ...this.#encryption, Body: Readable.from(counted.pieces()) },
      partSize: this.#partBytes,
      queueSize: PARTS_AT_ONCE,
    });
    try {
      await upload.done();
    } catch (error) {
      if (counted.failure !== null) throw counted.failure.reason;
      const { bytes } = counted;
      if (!(await isStored(this.#client, this.#object(key), { bytes, error }))) {
        throw unavailable(error);
      }
    }
    return { bytes: counted.bytes };
  }

  async join(
    key: string,
    parts: readonly BlobPart[],
    content: AsyncIterable<Uint8Array>,
  ): Promise<{ bytes: number }> {
    const pieces = this.#canCopy ? planPieces(parts) : null;
    if (pieces === null) return this.put(key, content);
    const target = {
      client: this.#plainClient,
      object: { ...this.#object(key), ...this.#encryption },
      pathOf: (partKey: string) => this.#object(partKey).Key,
      connections: this.#joinConnections,
    };
    const joined = await joinObjects(target, pieces, content);
    if (joined === "cannot_copy") this.#canCopy = false;
    if (joined !== "joined") return this.put(key, content);
    return { bytes: pieces.reduce((sum, { bytes }) => sum + bytes, 0) };
  }

  async putBytes(key: string, bytes: readonly Uint8Array[]): Promise<void> {
    const object = this.#object(key);
    const total = bytes.reduce((sum, { byteLength }) => sum + byteLength, 0);
    // The SDK signs and checks a body in one go, which would block the event loop.
    if (total > this.#partBytes) {
      await this.put(key, Readable.from(bytes));
      return;
    }
    const Body = Buffer.concat(bytes, total);
    const command = new PutObjectCommand({ ...object, ...this.#encryption, Body });
    await answered(this.#connections.run(() => this.#client.send(command)));
  }

  read(key: string, range: ByteRange = { start: 0, end: Number.POSITIVE_INFINITY }): Readable {
    return Readable.from(this.#chunksOf(key, range), { objectMode: false });
  }

  readRange(key: string, range: ByteRange): Promise<Buffer> {
    return this.#connections.run(async () => {
      // Each chunk is copied as it comes: to join 64 MB at the end would block the event loop for 50 ms.
      const bytes = Buffer.allocUnsafeSlow(range.end - range.start);
      let at = 0;
      for await (const chunk of this.#chunksOf(key, range)) at += chunk.copy(bytes, at);
      return bytes;
    });
  }

  async linkTo(key: string, headers: LinkHeaders): Promise<string | null> {
    if (this.#linkSeconds === undefined) return null;
    if (encodeURIComponent(headers.contentDisposition).length > MAX_LINKED_NAME) return null;
    const command = new GetObjectCommand({
      ...this.#object(key),
      ResponseContentType: headers.contentType,
      ResponseContentDisposition: headers.contentDisposition,
    });
    // The SDK learns from each answer how far the clock of this machine is off, and signs links without that.
    const signingDate = new Date(this.#clock.nowMs() + this.#client.config.systemClockOffset);
    const options = { expiresIn: this.#linkSeconds, signingDate };
    return answered(getSignedUrl(this.#plainClient, command, options));
  }

  async *list(prefix: string): AsyncIterable<BlobInfo> {
    for await (const page of this.#pagesOf(prefix)) yield* page;
  }

  async delete(...keys: readonly string[]): Promise<void> {
    for (let at = 0; at < keys.length; at += DELETED_AT_ONCE) {
      await this.#deleteTogether(keys.slice(at, at + DELETED_AT_ONCE));
    }
  }

  async deleteAll(prefix: string): Promise<void> {
    assertPrefix(prefix);
    for await (const page of this.#pagesOf(prefix)) {
      if (page.length > 0) await this.#deleteTogether(page.map(({ key }) => key));
    }
  }

  removeUnfinished(findGarbage: FindGarbage): Promise<void> {
    const place = { client: this.#client, bucket: this.#bucket, prefix: this.#prefix };
    return removeUnfinished(place, findGarbage);
  }

  async ping(): Promise<void> {
    using limit = timeLimit(this.#clock, PING_TIMEOUT_MS);
    const { signal } = limit;
    const path = this.#prefix + PING_NAME;
    const probe = { Bucket: this.#bucket, Key: path, ...this.#encryption };
    const put = new PutObjectCommand({ ...probe, Body: PING });
    await answered(this.#client.send(put, { abortSignal: signal }));
    // The right to read may be missing alone, also the one to the key of the encryption.
    const place = { client: this.#client, bucket: this.#bucket, clock: this.#clock };
    const object = { ...place, path, key: PING_NAME, signal };
    for await (const _ of readObject(object, { start: 0, end: PING.length }));
  }

  /** Returns true if there is no blob under the prefix. */
  async isEmpty(): Promise<boolean> {
    for await (const page of this.#pagesOf("")) if (page.length > 0) return false;
    return true;
  }

  /** Returns false if {@link ping} has never been called with this prefix. */
  async wasUsed(): Promise<boolean> {
    const first = { Bucket: this.#bucket, Prefix: this.#prefix + PING_NAME, MaxKeys: 1 };
    const { Contents = [] } = await listed(this.#client.send(new ListObjectsV2Command(first)));
    return Contents.length > 0;
  }

  async close(): Promise<void> {
    this.#client.destroy();
    this.#plainClient.destroy();
  }

  async *#chunksOf(key: string, range: ByteRange): AsyncGenerator<Buffer> {
    const { Bucket: bucket, Key: path } = this.#object(key);
    yield* readObject({ client: this.#client, bucket, path, key, clock: this.#clock }, range);
  }

  async *#pagesOf(prefix: string): AsyncGenerator<BlobInfo[]> {
    if (prefix !== "") assertPrefix(prefix);
    const query = { Bucket: this.#bucket, Prefix: this.#prefix + prefix };
    // A server that goes in circles would be asked for ever.
    const config = { client: this.#client, stopOnSameToken: true };
    const pages = paginateListObjectsV2(config, query);
    for (;;) {
      const { done, value } = await listed(pages.next());
      if (done === true) return;
      yield (value.Contents ?? []).flatMap(({ Key = "", Size = 0 }) => {
        const key = Key.slice(this.#prefix.length);
        if (key.startsWith(".") || key.endsWith("/")) return [];
        return [{ key, bytes: Size }];
      });
    }
  }

  async #deleteTogether(keys: readonly string[]): Promise<void> {
    const objects = keys.map((key) => ({ Key: this.#object(key).Key }));
    const [first] = objects;
    if (first === undefined) return;
    const Bucket = this.#bucket;
    if (objects.length === 1) {
      const command = new DeleteObjectCommand({ Bucket, ...first });
      await this.#client.send(command).catch((error: unknown) => {
        // Buckets of Google say so of an object that was deleted before.
        if (!isGone(error)) throw unavailable(error);
      });
      return;
    }
    const Delete = { Objects: objects, Quiet: true };
    const { Errors: errors = [] } = await answered(
      this.#client.send(new DeleteObjectsCommand({ Bucket, Delete })),
    );
    const failure = errors.find(({ Code }) => Code !== "NoSuchKey");
    if (failure === undefined) return;
    const { Key, Code, Message } = failure;
    throw unavailable(
      new Error(`${errors.length} objects were not deleted: ${Key} ${Code} ${Message}`),
    );
  }

  #object(key: string): { Bucket: string; Key: string } {
    assertKey(key);
    return { Bucket: this.#bucket, Key: this.#prefix + key };
  }
}
