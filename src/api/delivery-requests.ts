/**
 * Checks what a client asks for: the place of a delivery and the path below it. A mistake is refused here, before
 * anything is stored, and not hours later when the batch has ended.
 */
import {
  type BucketCredentials,
  type ClientBucket,
  type DeliveryId,
  destinationOf,
  newDeliveryId,
} from "../batch/delivery.ts";
import type { ResultFormat } from "../contract/results.ts";
import { PublicError } from "../errors.ts";
import { parseLocationPath } from "../locations/location-path.ts";
import type { NewDelivery } from "../store/deliveries.ts";
import { truncate } from "../text/truncate.ts";

export interface DeliveryRequest {
  /** The name of a location; null for a bucket of the client. */
  readonly location: string | null;
  readonly s3: (ClientBucket & BucketCredentials) | null;
  readonly path: string | null;
  readonly format: ResultFormat;
}

/** What the configuration says of buckets that clients bring credentials for. */
export interface ClientBuckets {
  /** Returns the reason why no such delivery is taken; null when they are. */
  refusal(): string | null;
  /** Returns the reason why the address is refused; null for an open one, and for a name, which is resolved later. */
  addressRefusal(host: string): string | null;
  seal(id: DeliveryId, credentials: BucketCredentials): Promise<string>;
}

export interface DeliveryRequestDeps {
  /** Whether the project may write its results to the location. */
  readonly mayWriteTo: (project: string, location: string) => boolean;
  readonly clientBuckets: ClientBuckets;
  readonly clock: { nowMs(): number };
}

/** Turns what a new batch asks for into deliveries. */
export async function newDeliveries(
  project: string,
  requests: readonly DeliveryRequest[],
  deps: DeliveryRequestDeps,
): Promise<NewDelivery[]> {
  const made: NewDelivery[] = [];
  for (const [i, request] of requests.entries()) {
    const path = `x_batchd.deliver.${i}.`;
    const delivery = await newDelivery(project, { request, path }, deps);
    if (made.some(({ destination }) => destination === delivery.destination)) {
      throw invalid(
        `${path}${request.location === null ? "bucket" : "location"}`,
        "a batch has one delivery to each place at a time",
      );
    }
    made.push(delivery);
  }
  return made;
}

interface Asked {
  readonly request: DeliveryRequest;
  /** What the names of parameters begin with; empty for a request that is the body. */
  readonly path: string;
}

export async function newDelivery(
  project: string,
  { request, path }: Asked,
  deps: DeliveryRequestDeps,
): Promise<NewDelivery> {
  const { location, format } = request;
  if (location !== null && !deps.mayWriteTo(project, location)) {
    throw invalid(`${path}location`, `there is no location '${truncate(location)}' to write to`);
  }
  if (request.path !== null) assertPath(request.path, `${path}path`);
  const id = newDeliveryId();
  const s3 = request.s3 === null ? null : checkedBucket(request.s3, path, deps.clientBuckets);
  if (request.s3 !== null) assertCredentials(request.s3, path);
  const credentials =
    request.s3 === null ? null : await deps.clientBuckets.seal(id, credentialsOf(request.s3));
  return {
    id,
    location,
    s3,
    path: request.path,
    format,
    credentials,
    destination: destinationOf({ location, s3 }),
    createdAtMs: deps.clock.nowMs(),
  };
}

function assertPath(text: string, param: string): void {
  const parsed = parseLocationPath(text);
  if (!parsed.ok) throw invalid(param, `the path ${parsed.problem}`);
}

const credentialsOf = ({ accessKeyId, secretAccessKey, sessionToken }: BucketCredentials) => ({
  accessKeyId,
  secretAccessKey,
  sessionToken,
});

/** Other characters, such as the end of a line that was copied, cannot be sent. The secret itself is not sent. */
const VISIBLE_ASCII = /^[\x21-\x7e]+$/;

function assertCredentials(credentials: BucketCredentials, path: string): void {
  const { accessKeyId, sessionToken } = credentials;
  const named = { access_key_id: accessKeyId, session_token: sessionToken };
  for (const [name, value] of Object.entries(named)) {
    if (value === null || VISIBLE_ASCII.test(value)) continue;
    throw invalid(`${path}${name}`, "expected visible ASCII characters alone, without spaces");
  }
}

const BUCKET = /^[A-Za-z0-9][A-Za-z0-9._-]{1,126}$/;
const REGION = /^[a-z]{2}[a-z0-9-]{0,30}$/;

function checkedBucket(
  { bucket, region, endpoint, forcePathStyle, prefix }: ClientBucket,
  path: string,
  rules: ClientBuckets,
): ClientBucket {
  const refusal = rules.refusal();
  if (refusal !== null) throw invalid(`${path}kind`, refusal);
  if (!BUCKET.test(bucket)) throw invalid(`${path}bucket`, "expected the name of a bucket");
  if (!REGION.test(region)) throw invalid(`${path}region`, "expected the name of a region");
  const address = endpoint === null ? null : addressOf(endpoint, `${path}endpoint`, rules);
  const folder = prefix.replace(/\/$/, "");
  if (folder !== "") assertPath(folder, `${path}prefix`);
  return {
    bucket,
    region,
    endpoint: address,
    forcePathStyle,
    prefix: folder === "" ? "" : `${folder}/`,
  };
}

/** The longest name in DNS. The address is a part of a key in an index, which PostgreSQL refuses beyond some size. */
const MAX_HOST_LENGTH = 253;

/** Returns the one spelling of an address. A batch has one delivery to each place, however the client spells it. */
function addressOf(endpoint: string, param: string, rules: ClientBuckets): string {
  const url = URL.parse(endpoint);
  const isPlain =
    url !== null &&
    /^https?:$/.test(url.protocol) &&
    url.username === "" &&
    url.password === "" &&
    /^\/?$/.test(url.pathname) &&
    url.search === "" &&
    url.hash === "";
  if (!isPlain) throw invalid(param, "expected an http:// or https:// address without a path");
  if (url.hostname.length > MAX_HOST_LENGTH) {
    throw invalid(param, `its host has more than ${MAX_HOST_LENGTH} characters`);
  }
  const refusal = rules.addressRefusal(url.hostname.replace(/^\[(.*)\]$/, "$1"));
  if (refusal !== null) throw invalid(param, refusal);
  return url.origin;
}

const invalid = (param: string, problem: string) =>
  new PublicError("invalid_value", `Invalid '${param}': ${problem}.`, { param });
