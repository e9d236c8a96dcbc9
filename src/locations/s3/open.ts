/** Opens buckets: those of the configuration, and those that a client names with credentials of its own. */
import type { LookupFunction } from "node:net";
import type { BucketCredentials, ClientBucket } from "../../batch/delivery.ts";
import type { Clock } from "../../clock.ts";
import type { LocationConfig } from "../../config/locations.ts";
import { bucketOptions } from "../../config/storage.ts";
import { type Location, LocationError } from "../location.ts";
import { S3Location } from "./s3.ts";

type S3Config = Extract<LocationConfig, { kind: "s3" }>;

export const openS3Location = (
  config: S3Config,
  clock: Pick<Clock, "after" | "elapsedMs">,
): Location => {
  const { name, bucket, prefix } = config;
  return new S3Location({ name, bucket, prefix, clock, ...bucketOptions(config) });
};

/** Decides which addresses a client may name. */
export interface AddressCheck {
  /** Returns the refusal of a host that is an address; null for an open one, and for a name. */
  refusalOf(host: string): Error | null;
  /** Finds only the addresses of a name that are open. */
  readonly lookup: LookupFunction;
}

const REGION = /^[a-z]{2}[a-z0-9-]{0,30}$/;
const CLIENT_TIMEOUT_MS = 30_000;

/**
 * Opens a bucket that a client names. It never gets the credentials of the server. Throws a {@link LocationError} for an
 * address that the client may not name.
 */
export function openClientBucket(
  client: ClientBucket & BucketCredentials,
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
