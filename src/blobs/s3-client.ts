/** Configures the S3 client of the SDK: signatures, timeouts, retries. Translates its errors into those of the port. */
import { Agent } from "node:http";
import { Agent as TlsAgent } from "node:https";
import type { LookupFunction } from "node:net";
import { HeadObjectCommand, S3Client, type S3ClientConfig } from "@aws-sdk/client-s3";
import { lookupOnce } from "../resources/name-lookup.ts";
import { BlobNotFound, BlobsUnavailable } from "./blobs.ts";

/** Says where a server is and how to speak with it. */
export interface S3ClientOptions {
  /** The SDK looks for a missing region where the AWS tools do. */
  readonly region?: string | undefined;
  /** The address of a server other than AWS. */
  readonly endpoint?: string | undefined;
  readonly forcePathStyle: boolean;
  /** The SDK looks for missing credentials where the AWS tools do. */
  readonly credentials?: S3Credentials | undefined;
  /** Whether uploads have a checksum for the server to check. Some older servers refuse such requests. */
  readonly sendsChecksums: boolean;
  /** The longest silence on a connection. */
  readonly timeoutMs: number;
  /** Resolves the names of hosts in the place of the system. */
  readonly lookup?: LookupFunction | undefined;
}

export interface S3Options extends S3ClientOptions {
  readonly bucket: string;
  /** The beginning of every object name: empty, or a path that ends in `/`. */
  readonly prefix: string;
  readonly encryption?: S3Encryption | undefined;
  readonly partBytes: number;
  /** The lifetime of the links to objects; undefined if there are to be none. */
  readonly linkSeconds?: number | undefined;
}

/** What became of a request. A request that the SDK repeats counts each time, as it does for the service. */
type S3Outcome = "ok" | "missing" | "throttled" | "refused" | "failed";

export type OnS3Request = (operation: string, outcome: S3Outcome) => void;

export interface S3Credentials {
  readonly accessKeyId: string;
  readonly secretAccessKey: string;
  readonly sessionToken?: string | undefined;
}

export interface S3Encryption {
  readonly algorithm: "AES256" | "aws:kms";
  readonly kmsKeyId?: string | undefined;
}

/** Returns the parameters that ask the bucket to encrypt an object. */
export const encryptionOf = (encryption: S3Encryption | undefined) => ({
  ...(encryption !== undefined && { ServerSideEncryption: encryption.algorithm }),
  ...(encryption?.kmsKeyId !== undefined && { SSEKMSKeyId: encryption.kmsKeyId }),
});

const CONNECT_TIMEOUT_MS = 5_000;
/** The SDK's attempts take some seconds together. Callers repeat what needs more time. */
const MAX_ATTEMPTS = 4;
/** The most connections that stay open for later requests. */
const MAX_IDLE_CONNECTIONS = 32;

export function openS3Client(options: S3ClientOptions, onRequest: OnS3Request): S3Client {
  const { region, endpoint, forcePathStyle, credentials, sendsChecksums, timeoutMs } = options;
  const { lookup = lookupOnce } = options;
  // A bound would let slow downloads, which hold a connection each, stop the journals.
  const agent = {
    keepAlive: true,
    maxSockets: Number.POSITIVE_INFINITY,
    maxFreeSockets: MAX_IDLE_CONNECTIONS,
    lookup,
  };
  const config: S3ClientConfig = {
    forcePathStyle,
    // The SDK may keep a region that a redirect has named. A server at an address of its own has one region.
    followRegionRedirects: endpoint === undefined,
    retryMode: "standard",
    maxAttempts: MAX_ATTEMPTS,
    requestChecksumCalculation: sendsChecksums ? "WHEN_SUPPORTED" : "WHEN_REQUIRED",
    // Servers send no checksum for a range, and most reads are ranges. Segments have checksums of their own.
    responseChecksumValidation: "WHEN_REQUIRED",
    requestHandler: {
      connectionTimeout: Math.min(CONNECT_TIMEOUT_MS, timeoutMs),
      socketTimeout: timeoutMs,
      // Given options alone, the SDK sends large bodies over an agent of its own, which does not have our `lookup`.
      httpAgent: new Agent(agent),
      httpsAgent: new TlsAgent(agent),
    },
    // With an agent of ours the SDK does not wait for the answer to it.
    expectContinueHeader: false,
    ...(region !== undefined && { region }),
    // The SDK refuses an address together with a choice between those of AWS, which the machine may make for all programs.
    ...(endpoint !== undefined && {
      endpoint,
      useDualstackEndpoint: false,
      useFipsEndpoint: false,
    }),
    ...(credentials !== undefined && { credentials: credentialsOf(credentials) }),
  };
  const client = new S3Client(config);
  // The step that is added last is the inner one.
  countRequests(client, onRequest);
  refuseOtherAnswers(client);
  return client;
}

/** The step is inside of the one that repeats requests, and outside of the one that finds errors in answers. */
function countRequests({ middlewareStack }: S3Client, onRequest: OnS3Request): void {
  middlewareStack.add(
    (next, { commandName = "" }) =>
      async (args) => {
        const operation = commandName.replace(/Command$/, "");
        try {
          const result = await next(args);
          onRequest(operation, "ok");
          return result;
        } catch (error) {
          onRequest(operation, outcomeOf(error));
          throw error;
        }
      },
    { name: "countRequests", step: "deserialize", priority: "high" },
  );
}

interface Written {
  readonly ETag?: string;
  readonly UploadId?: string;
  readonly CopyPartResult?: { readonly ETag?: string };
}

/** What a bucket always says of a write that it has carried out. */
const PROOFS: ReadonlyMap<string, (output: Written) => string | undefined> = new Map([
  ["PutObjectCommand", ({ ETag }) => ETag],
  ["CreateMultipartUploadCommand", ({ UploadId }) => UploadId],
  ["UploadPartCommand", ({ ETag }) => ETag],
  ["UploadPartCopyCommand", ({ CopyPartResult }) => CopyPartResult?.ETag],
  ["CompleteMultipartUploadCommand", ({ ETag }) => ETag],
]);

/** The error for an answer that some other server has given in the place of the bucket. */
class NotFromBucket extends Error {
  override readonly name = "NotFromBucket";
}

/**
 * A proxy may answer 200 with a page of its own while the bucket is away. What a bucket has stored has a tag, so a write
 * that was answered without one has stored nothing. A part of an upload without an id would be written over its object.
 */
function refuseOtherAnswers({ middlewareStack }: S3Client): void {
  middlewareStack.add(
    (next, { commandName = "" }) =>
      async (args) => {
        const result = await next(args);
        const proofIn = PROOFS.get(commandName);
        if (proofIn !== undefined && !proofIn(result.output as Written)) {
          throw new NotFromBucket("what was written has no ETag or id, so it is not stored");
        }
        return result;
      },
    { name: "refuseOtherAnswers", step: "deserialize", priority: "high" },
  );
}

const credentialsOf = ({ accessKeyId, secretAccessKey, sessionToken }: S3Credentials) => ({
  accessKeyId,
  secretAccessKey,
  ...(sessionToken !== undefined && { sessionToken }),
});

interface ServiceError extends Error {
  readonly code?: unknown;
  readonly $metadata?: { readonly httpStatusCode?: number };
}

/** The answers of a server that needs nothing but time. */
const PASSING_STATUSES = [408, 409, 425, 429];
const THROTTLING_STATUSES = [429, 503];
const THROTTLING_NAMES = ["SlowDown", "Throttling", "ThrottlingException"];
const PASSING_NAMES = ["RequestTimeout", "TinyPieces", ...THROTTLING_NAMES];

export const statusOf = (error: unknown) => (error as ServiceError).$metadata?.httpStatusCode;

/** Recognizes a missing object. The answer to a HEAD has no body, so its name is `NotFound`. */
export const isMissing = (error: unknown): boolean =>
  error instanceof Error && ["NoSuchKey", "NotFound"].includes(error.name);

export const isOutOfRange = (error: unknown): boolean => statusOf(error) === 416;

/** Recognizes a multipart upload that was completed or aborted before. */
export const isNoSuchUpload = (error: unknown): boolean =>
  error instanceof Error && error.name === "NoSuchUpload";

interface ObjectName {
  readonly Bucket: string | undefined;
  readonly Key: string | undefined;
}

/**
 * Returns whether the object of a multipart upload is there although the request that completes it has failed: its
 * answer was lost. If the SDK repeats the request, the server may not know the upload any more, or has answered
 * `NoSuchKey` because it was still joining the parts. Keys are used once, so an object of this size is the one.
 */
export async function isStored(
  client: S3Client,
  { Bucket, Key }: ObjectName,
  { bytes, error }: { readonly bytes: number; readonly error: unknown },
): Promise<boolean> {
  // A server that has answered with anything else has not made the object.
  if (!isNoSuchUpload(error) && !isMissing(error) && statusOf(error) !== undefined) return false;
  const found = await client.send(new HeadObjectCommand({ Bucket, Key })).catch(() => null);
  return found?.ContentLength === bytes;
}

/** Recognizes a server that does not know the operation. */
export const isNotImplemented = (error: unknown): boolean =>
  [405, 501].includes(statusOf(error) ?? 0) ||
  (error instanceof Error && error.name === "NotImplemented");

function outcomeOf(error: unknown): S3Outcome {
  const status = statusOf(error) ?? 0;
  if (THROTTLING_STATUSES.includes(status) || THROTTLING_NAMES.includes((error as Error).name)) {
    return "throttled";
  }
  if (status === 404) return "missing";
  return status >= 400 && status < 500 ? "refused" : "failed";
}

/**
 * Recognizes the word of the service itself that there is no such object. A proxy before a service that is away may answer 404
 * too, and a blob must not be taken for lost then.
 */
export const isGone = (error: unknown): boolean =>
  error instanceof Error && error.name === "NoSuchKey";

/** Translates an error of the SDK into one of the port. */
export const blobError = (cause: unknown, key: string): Error =>
  isGone(cause) ? new BlobNotFound(key, { cause }) : unavailable(cause);

export function unavailable(cause: unknown): BlobsUnavailable {
  if (cause instanceof BlobsUnavailable) return cause;
  const status = statusOf(cause);
  const isPassing =
    status === undefined ||
    status >= 500 ||
    PASSING_STATUSES.includes(status) ||
    PASSING_NAMES.includes((cause as Error).name);
  const isRefusal = !isPassing || isUnusable(cause);
  return new BlobsUnavailable(`S3: ${textOf(cause)}`, { cause, isRefusal });
}

/** Turns what a bucket refuses into an error of the port. */
export const answered = <T>(sent: Promise<T>): Promise<T> =>
  sent.catch((error: unknown) => {
    throw unavailable(error);
  });

/**
 * A list names no object. A server that misses one takes the bucket for it, because the path of the endpoint names the
 * bucket, too.
 */
export const listed = <T>(sent: Promise<T>): Promise<T> =>
  sent.catch((cause: unknown) => {
    if (!isGone(cause)) throw unavailable(cause);
    const text = "S3: the bucket is taken for an object: does its endpoint name the bucket, too?";
    throw new BlobsUnavailable(text, { cause, isRefusal: true });
  });

const UNUSABLE_NAMES = ["CredentialsProviderError", "InvalidBucketName", "EndpointError"];
const UNUSABLE_WORDS = /^(?:Region is missing$|Region not accepted|Path-style addressing)/;

/** Recognizes a client that cannot send any request: it has no credentials, or its region or its bucket has no valid name. */
export function isUnusable(cause: unknown): boolean {
  if (!(cause instanceof Error) || statusOf(cause) !== undefined) return false;
  return UNUSABLE_NAMES.includes(cause.name) || UNUSABLE_WORDS.test(cause.message);
}

interface Answered extends Error {
  readonly Code?: unknown;
  readonly $response?: { readonly headers?: Readonly<Record<string, string | undefined>> };
}

/**
 * Recognizes what another server says in the place of the bucket, such as a proxy whose server is away. A bucket says in XML what
 * is wrong. The answer to a HEAD has no text, so a 404 to one may be of either.
 */
export function isPage(cause: unknown): boolean {
  if (!(cause instanceof Error)) return false;
  const { Code, $response } = cause as Answered;
  const type = $response?.headers?.["content-type"];
  return Code === undefined && type !== undefined && !/xml/i.test(type);
}

/** What the SDK says in words for programmers. What it says of one place, as of a session that has expired, names the cause. */
const LACKING = new Map([
  ["Could not load credentials from any providers", "are no credentials"],
  ["Region is missing", "is no region"],
]);

function textOf(cause: unknown): string {
  if (!(cause instanceof Error)) return String(cause);
  const { name, message, code } = cause as ServiceError;
  if (message.includes("wrong version number"))
    return "the endpoint answers without TLS: is it http?";
  if (isPage(cause)) {
    const status = statusOf(cause) ?? 0;
    // A proxy says so of a bucket that is away for a while.
    const question = status >= 500 ? "" : ": is its endpoint right?";
    return `another server answers ${status} in the place of the bucket${question}`;
  }
  const lacking = LACKING.get(message);
  if (lacking !== undefined)
    return `there ${lacking} for the bucket, neither in the configuration nor in the usual places of AWS`;
  const word = typeof code === "string" ? code : name;
  return message === "" || message.includes(word) ? message || word : `${word}: ${message}`;
}
