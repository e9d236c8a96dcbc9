/** Configures the S3 client of the SDK: signatures, timeouts, retries. */
import { Agent } from "node:http";
import { Agent as TlsAgent } from "node:https";
import type { LookupFunction } from "node:net";
import { HeadObjectCommand, S3Client, type S3ClientConfig } from "@aws-sdk/client-s3";
import { lookupOnce } from "../resources/name-lookup.ts";
import { machineCredentials } from "./s3-credentials.ts";
import {
  isMissing,
  isNoSuchUpload,
  NotFromBucket,
  outcomeOf,
  type S3Outcome,
  statusOf,
} from "./s3-error.ts";

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
    credentials: credentials === undefined ? machineCredentials() : credentialsOf(credentials),
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
