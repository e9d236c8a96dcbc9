/** The schema of `locations`: places outside of batchd where input comes from and results go. */
import { sep } from "node:path";
import { z } from "zod";
import { percentDecoded } from "./percent-decoded.ts";
import { objectPrefix, STORAGE, type StorageConfig } from "./storage.ts";
import { bytes, httpUrl, name, seconds, secret } from "./values.ts";

const ACCESS = ["read", "write", "read-write"] as const;

/** The texts are the same for every kind. */
const commonKeys = <Kind extends string>(kind: Kind) => ({
  name: name.describe("What clients call it. Every location needs a name of its own."),
  kind: z.literal(kind).describe("What kind of place it is."),
  access: z
    .enum(ACCESS)
    .describe("Whether batches may read their input from it, write their results to it, or both."),
  projects: z
    .array(name)
    .min(1)
    .optional()
    .meta({ description: "The projects that may use it.", left_out: "all", example: "[search]" }),
});

/** The keys of a bucket, as `storage` has them. */
const S3_KEYS = STORAGE.pick({
  region: true,
  endpoint: true,
  force_path_style: true,
  access_key_id: true,
  secret_access_key: true,
  session_token: true,
  server_side_encryption: true,
  kms_key_id: true,
  timeout_seconds: true,
}).shape;

const FolderEntry = z.strictObject({
  ...commonKeys("folder"),
  path: z.string().min(1).meta({
    description: "The folder, such as a mounted share. It must be there, and may be a link.",
    example: "/mnt/share/batches",
  }),
});

function hasNoPassword(repository: string): boolean {
  const url = URL.parse(repository);
  if (url === null) return true;
  const isSsh = url.protocol === "ssh:";
  return url.password === "" && (isSsh || url.username === "");
}

const S3Entry = z
  .strictObject({
    ...commonKeys("s3"),
    bucket: z.string().min(1).meta({
      description: "The bucket. batchd does not create it.",
      example: "my-results",
    }),
    prefix: objectPrefix.default("").meta({
      description: "What the name of every object begins with.",
      left_out: "nothing",
      example: "runs/",
    }),
    ...S3_KEYS,
    checksums: z
      .boolean()
      .default(true)
      .describe(
        "Whether uploads carry a SHA-256 that the server checks. `false` for a server that refuses such requests.",
      ),
  })
  .refine(
    (entry) => (entry.access_key_id === undefined) === (entry.secret_access_key === undefined),
    "access_key_id and secret_access_key go together",
  )
  .refine((entry) => entry.session_token === undefined || entry.access_key_id !== undefined, {
    error: "only with access_key_id",
    path: ["session_token"],
  })
  .refine((entry) => entry.kms_key_id === undefined || entry.server_side_encryption === "aws:kms", {
    error: "only with server_side_encryption aws:kms",
    path: ["kms_key_id"],
  });

/** A path of this machine, `ssh://`, `https://`, `http://` or `file://`, or `user@host:path`. No other program is started. */
const REPOSITORY =
  /^(?:(?:ssh|https?|file):\/\/[^-\s][^\s]*|[A-Za-z0-9._]+@[A-Za-z0-9][A-Za-z0-9.-]*:[^\s]+|(?!-)[^:\s][^:\p{Cc}]*)$/u;
/** A part of the rules of git for names of branches, and more than enough. */
const BRANCH =
  /^(?![-/.])(?!.*(?:\.\.|\/\/|\/\.|@\{|\.lock(?:\/|$)|[/.]$))[\p{L}\p{N}._/@#+-]{1,200}$/u;
const IDENTITY = /^[^<>\p{C}]{1,200}$/u;

const branch = z
  .string()
  .regex(BRANCH, "expected the name of a branch")
  .default("main")
  .describe(
    "The branch that files are read from, and that new branches begin at. It is never changed.",
  );

const identity = z.string().regex(IDENTITY, "expected a text in one line without < and >");

const authorKeys = {
  author_name: identity.default("batchd").describe("The author of commits."),
  author_email: identity.default("batchd@localhost").describe("The e-mail address of the author."),
};

const GitEntry = z
  .strictObject({
    ...commonKeys("git"),
    repository: z
      .string()
      .regex(REPOSITORY, "expected a path, or an address with ssh, https, http or file")
      .refine(hasNoPassword, "leave the password out of it: username and password have keys")
      .meta({
        description:
          "The repository. For `git` a path of this machine, or an address; for `oxen` namespace and name.",
        example: "https://git.example.com/team/evals.git",
      }),
    base: branch,
    username: z
      .string()
      .regex(/^[^:\p{C}]+$/u, "expected a name without a colon")
      .optional()
      .meta({
        description: "The user for `https` and `http`.",
        left_out: "none",
        example: "batchd",
      }),
    password: secret.optional().meta({
      description: "The password or token of the user.",
      left_out: "none",
      example: "${GIT_TOKEN}",
    }),
    ssh_key_file: z.string().min(1).optional().meta({
      description: "File with the private key for ssh, without a passphrase.",
      left_out: "the keys in `~/.ssh`, or those of `SSH_AUTH_SOCK`",
      example: "/etc/batchd/id_ed25519",
    }),
    ...authorKeys,
    max_file_bytes: bytes(1, Number.MAX_SAFE_INTEGER).optional().meta({
      description:
        "The largest file to deliver. Hosting services refuse files above some size, often 100 MB.",
      left_out: "no limit",
      example: "100MB",
    }),
    timeout_seconds: seconds
      .default(300)
      .describe("How long git may be silent before it is ended."),
  })
  .refine((entry) => (entry.username === undefined) === (entry.password === undefined), {
    error: "username and password go together",
  })
  .refine((entry) => entry.password === undefined || /^https?:/.test(entry.repository), {
    error: "only with https and http",
    path: ["password"],
  });

const OxenEntry = z.strictObject({
  ...commonKeys("oxen"),
  url: httpUrl
    .refine(hasNoPassword, "leave user name and password out of it: token has a key")
    .meta({ description: "The address of the server.", example: "http://oxen.internal:3000" }),
  repository: z
    .string()
    .regex(/^[A-Za-z0-9][A-Za-z0-9._-]*\/[A-Za-z0-9][A-Za-z0-9._-]*$/, "expected namespace/name")
    .meta({
      description: "Namespace and name.",
      example: "team/evals",
    }),
  base: branch,
  token: secret.optional().meta({
    description: "The access token, sent as `Authorization: Bearer …`.",
    left_out: "none",
    example: "${OXEN_TOKEN}",
  }),
  ...authorKeys,
  timeout_seconds: seconds
    .default(60)
    .describe("How long a connection to the server may be silent."),
});

const KINDS = [FolderEntry, S3Entry, GitEntry, OxenEntry] as const;

export const LocationEntry = z.discriminatedUnion("kind", KINDS, {
  error: "expected folder, s3, git or oxen",
});

export type LocationConfig = z.infer<typeof LocationEntry>;

interface Places {
  readonly locations: readonly LocationConfig[];
  readonly data_dir: string;
  readonly storage: StorageConfig;
}

/** Checks rules between locations and other values. `realPathOf` returns where a path leads to, over all links. */
export function locationProblems(
  { locations, data_dir: dataDir, storage }: Places,
  realPathOf: (path: string) => string,
): string[] {
  return locations.flatMap((location, i) => {
    if (location.kind === "s3" && areNestedInBucket(location, storage)) {
      return [
        `locations[${i}].prefix: the storage and a location must not lie in each other, because all projects have their files in the storage`,
      ];
    }
    const path = placeOnDisk(location);
    if (path === null || !areNested(realPathOf(path), realPathOf(dataDir))) return [];
    return [
      `locations[${i}].${location.kind === "git" ? "repository" : "path"}: the data_dir and a location must not lie in each other, because all projects have their files in the data_dir`,
    ];
  });
}

/** The place of a location on this machine; null for one elsewhere. */
export function placeOnDisk(location: LocationConfig): string | null {
  if (location.kind === "folder") return location.path;
  if (location.kind !== "git") return null;
  const { repository } = location;
  const url = /^file:\/\//.test(repository) ? URL.parse(repository) : null;
  if (url !== null) return percentDecoded(url.pathname);
  return /^[a-z]+:\/\/|^[^/]+:/i.test(repository) ? null : repository;
}

/** The program that a location needs is missing. */
export const programProblems = (
  { locations }: Pick<Places, "locations">,
  hasProgram: (program: string) => boolean,
): string[] =>
  locations.flatMap(({ kind }, i) =>
    kind === "git" && !hasProgram("git")
      ? [`locations[${i}]: kind git needs the program git, which is not in the PATH`]
      : [],
  );

type InBucket = Pick<StorageConfig, "bucket" | "prefix" | "endpoint">;

function areNestedInBucket(one: InBucket, other: InBucket): boolean {
  const isOneBucket = one.bucket === other.bucket && serverOf(one) === serverOf(other);
  return (
    isOneBucket && (one.prefix.startsWith(other.prefix) || other.prefix.startsWith(one.prefix))
  );
}

const AWS = "amazonaws.com";

/** AWS has one bucket of a name, whichever of its addresses leads there. */
function serverOf({ endpoint }: InBucket): string {
  const host = endpoint === undefined ? AWS : (URL.parse(endpoint)?.host ?? endpoint);
  return host.endsWith(`.${AWS}`) ? AWS : host;
}

const areNested = (one: string, other: string) => isWithin(one, other) || isWithin(other, one);

/** Whether a path is another one, or lies in it. Both are whole and without links. */
export const isWithin = (inner: string, outer: string) =>
  withSeparator(inner).startsWith(withSeparator(outer));

const withSeparator = (path: string) => (path.endsWith(sep) ? path : path + sep);
