/** Defines the schema of `storage`, which names the place of files, results and journals, and the rules between its keys. */
import { z } from "zod";
import { bytes, openHttpUrl, seconds, secret } from "./values.ts";

const STORAGE_TYPES = ["folder", "s3"] as const;
const ENCRYPTIONS = ["AES256", "aws:kms"] as const;

const MIB = 1024 * 1024;
/** S3 refuses smaller parts, except the last one, and more parts of one object. */
const MIN_PART_BYTES = 5 * MIB;
const MAX_PART_BYTES = 256 * MIB;
const MAX_PARTS = 10_000;

/** What the names of objects begin with. */
export const objectPrefix = z
  .string()
  .regex(
    /^(?:[A-Za-z0-9_-][A-Za-z0-9._-]*\/)*$/,
    "expected a path of letters, digits, '.', '_' and '-' that ends in '/', or nothing",
  );

/** The mapping is flat, so that the page of the configuration can list each key once. */
export const STORAGE = z.strictObject({
  type: z
    .enum(STORAGE_TYPES)
    .default("folder")
    .describe(
      "`folder` is `blobs` in the `data_dir`; `s3` is a bucket. The other keys are for `s3`.",
    ),
  bucket: z.string().min(1).optional().meta({
    description: "The bucket. batchd does not create it.",
    left_out: "required with `s3`",
    example: "my-batches",
  }),
  prefix: objectPrefix
    .default("batchd/")
    .describe(
      "What every object's name begins with. Each deployment needs a prefix of its own: batchd deletes what it does not know.",
    ),
  region: z.string().min(1).optional().meta({
    description: "The region of the bucket.",
    left_out: "the region in `AWS_REGION` or the AWS profile",
    example: "eu-central-1",
  }),
  endpoint: openHttpUrl.optional().meta({
    description: "The address of a server other than AWS that speaks the protocol.",
    left_out: "AWS",
    example: "http://minio.internal:9000",
  }),
  force_path_style: z
    .boolean()
    .default(false)
    .describe(
      "Whether the bucket stands in the path of the address instead of its host name. Most servers other than AWS need it.",
    ),
  access_key_id: secret.optional().meta({
    description: "The id of the access key.",
    left_out: "the usual chain: environment, AWS profile, web identity, container or instance role",
    example: "${S3_ACCESS_KEY_ID}",
  }),
  secret_access_key: secret.optional().meta({
    description: "The access key, best as `${NAME}`.",
    left_out: "as `access_key_id`",
    example: "${S3_SECRET_ACCESS_KEY}",
  }),
  session_token: secret.optional().meta({
    description:
      "The session token of temporary credentials. They are not renewed: prefer the usual chain.",
    left_out: "none",
    example: "${S3_SESSION_TOKEN}",
  }),
  server_side_encryption: z.enum(ENCRYPTIONS).optional().meta({
    description: "How the bucket is asked to encrypt each object.",
    left_out: "as the bucket has it",
  }),
  kms_key_id: z.string().min(1).optional().meta({
    description: "The key for `aws:kms`.",
    left_out: "the key of the bucket or the account",
    example: "alias/batchd",
  }),
  checksums: z
    .boolean()
    .default(true)
    .describe(
      "Whether uploads carry a CRC-32 that the server checks. `false` for a server that refuses such requests.",
    ),
  presigned_downloads: z
    .boolean()
    .default(false)
    .describe(
      "Whether downloads are redirected to the bucket (302), to an address that is signed for this file. Clients must be able to reach the bucket, at another host than batchd's that is no subdomain of it.",
    ),
  presigned_seconds: seconds
    .default(300)
    .describe(
      "The time for which such an address is valid. Anyone who knows it can read the file.",
    ),
  part_bytes: bytes(MIN_PART_BYTES, MAX_PART_BYTES)
    .default(8 * MIB)
    .describe(
      `Larger objects are uploaded in parts of this size, at most 10,000 of them. Each upload holds up to three in memory.`,
    ),
  timeout_seconds: seconds
    .default(30)
    .describe("How long a connection may be silent before the request is tried again."),
});

export type StorageConfig = z.infer<typeof STORAGE>;

type BucketKeys = Pick<
  StorageConfig,
  | "region"
  | "endpoint"
  | "force_path_style"
  | "access_key_id"
  | "secret_access_key"
  | "session_token"
  | "server_side_encryption"
  | "kms_key_id"
  | "checksums"
  | "timeout_seconds"
>;

/** Returns the options of a client of the bucket, apart from its name and prefix. */
export function bucketOptions(keys: BucketKeys) {
  const { access_key_id: accessKeyId, secret_access_key: secretAccessKey } = keys;
  const { server_side_encryption: algorithm, kms_key_id: kmsKeyId } = keys;
  const hasKey = accessKeyId !== undefined && secretAccessKey !== undefined;
  return {
    region: keys.region,
    endpoint: keys.endpoint,
    forcePathStyle: keys.force_path_style,
    credentials: hasKey
      ? { accessKeyId, secretAccessKey, sessionToken: keys.session_token }
      : undefined,
    encryption: algorithm === undefined ? undefined : { algorithm, kmsKeyId },
    sendsChecksums: keys.checksums,
    timeoutMs: keys.timeout_seconds * 1_000,
  };
}

/** The keys that a folder has no use for, and that are not set by default. */
const S3_ONLY = [
  "bucket",
  "region",
  "endpoint",
  "access_key_id",
  "secret_access_key",
  "session_token",
  "server_side_encryption",
  "kms_key_id",
  "presigned_downloads",
] as const satisfies readonly (keyof StorageConfig)[];

export function storageProblems(storage: StorageConfig, maxUploadBytes: number): string[] {
  const problem = (key: keyof StorageConfig, text: string) => `storage.${key}: ${text}`;
  const isSet = (key: keyof StorageConfig) => storage[key] !== undefined;
  if (storage.type !== "s3") {
    const isMeant = (key: keyof StorageConfig) => isSet(key) && storage[key] !== false;
    return S3_ONLY.filter(isMeant).map((key) => problem(key, "only with storage.type s3"));
  }
  const problems: string[] = [];
  if (!isSet("bucket")) problems.push(problem("bucket", "required with storage.type s3"));
  if (isSet("access_key_id") !== isSet("secret_access_key")) {
    problems.push("storage: access_key_id and secret_access_key go together");
  }
  if (isSet("session_token") && !isSet("access_key_id")) {
    problems.push(problem("session_token", "only with access_key_id"));
  }
  if (isSet("kms_key_id") && storage.server_side_encryption !== "aws:kms") {
    problems.push(problem("kms_key_id", "only with server_side_encryption aws:kms"));
  }
  if (storage.part_bytes * MAX_PARTS < maxUploadBytes) {
    const needed = Math.ceil(maxUploadBytes / MAX_PARTS);
    problems.push(problem("part_bytes", `limits.max_upload_bytes needs at least ${needed}`));
  }
  return problems;
}
