/** Opens buckets: those of the configuration, and those that a client names with credentials of its own. */
import type { LookupFunction } from "node:net";
import type { Clock } from "../../clock.ts";
import type { LocationConfig } from "../../config/locations.ts";
import { type Location, LocationError } from "../location.ts";
import { S3Location } from "./s3.ts";

type S3Config = Extract<LocationConfig, { kind: "s3" }>;

export function openS3Location(
  config: S3Config,
  clock: Pick<Clock, "after" | "elapsedMs">,
): Location {
  const { name, bucket, prefix, region, endpoint, force_path_style: forcePathStyle } = config;
  const { access_key_id: accessKeyId, secret_access_key: secretAccessKey } = config;
  const { server_side_encryption: algorithm, kms_key_id: kmsKeyId } = config;
  const hasKey = accessKeyId !== undefined && secretAccessKey !== undefined;
  return new S3Location({
    name,
    bucket,
    prefix,
    region,
    endpoint,
    forcePathStyle,
    clock,
    credentials: hasKey
      ? { accessKeyId, secretAccessKey, sessionToken: config.session_token }
      : undefined,
    encryption: algorithm === undefined ? undefined : { algorithm, kmsKeyId },
    sendsChecksums: config.checksums,
    timeoutMs: config.timeout_seconds * 1_000,
  });
}

/** A bucket that a client names. It never gets the credentials of the server. */
export interface ClientBucket {
  readonly bucket: string;
  /** It is empty, or a path that ends in `/`. */
  readonly prefix: string;
  readonly region: string;
  /** It is null for AWS. */
  readonly endpoint: string | null;
  readonly forcePathStyle: boolean;
  readonly accessKeyId: string;
  readonly secretAccessKey: string;
  readonly sessionToken: string | null;
}

/** Decides which addresses a client may name. */
export interface AddressCheck {
  /** Returns the refusal of a host that is an address; null for an open one, and for a name. */
  refusalOf(host: string): Error | null;
  /** Finds only the addresses of a name that are open. */
  readonly lookup: LookupFunction;
}

const REGION = /^[a-z]{2}[a-z0-9-]{0,30}$/;
const CLIENT_TIMEOUT_MS = 30_000;

/** Throws a {@link LocationError} for an address that the client may not name. */
export function openClientBucket(
  client: ClientBucket,
  {
    check,
    clock,
  }: { readonly check: AddressCheck; readonly clock: Pick<Clock, "after" | "elapsedMs"> },
): Location {
  const { bucket, prefix, region, forcePathStyle, sessionToken } = client;
  if (!REGION.test(region)) throw new LocationError("refused", "region is not the name of one");
  const endpoint = client.endpoint ?? awsEndpoint(region);
  const host = new URL(endpoint).hostname.replace(/^\[(.*)\]$/, "$1");
  if (check.refusalOf(host) !== null) {
    // The API has checked the address. Another server of the fleet may be configured to reach it.
    throw new LocationError("unavailable", "the server is not at a public address");
  }
  return new S3Location({
    name: `s3://${bucket}`,
    bucket,
    prefix,
    region,
    endpoint,
    forcePathStyle,
    clock,
    credentials: {
      accessKeyId: client.accessKeyId,
      secretAccessKey: client.secretAccessKey,
      ...(sessionToken !== null && { sessionToken }),
    },
    sendsChecksums: true,
    timeoutMs: CLIENT_TIMEOUT_MS,
    lookup: check.lookup,
  });
}

/** The environment of the server must not choose the address of a client's bucket, so it is always given. */
const awsEndpoint = (region: string) =>
  `https://s3.${region}.amazonaws.com${region.startsWith("cn-") ? ".cn" : ""}`;
