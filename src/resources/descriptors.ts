/**
 * Divides the file descriptors of the process, so that no part ever finds none left. A process without descriptors
 * cannot write its journal, reach a model or report the fault.
 *
 * The engine's files have a fixed number of them. The upstreams get the descriptors for their concurrency, but at most
 * a third of the rest. The clients get two for each connection, because an upload or a download also has a file. With a
 * bucket they get three, because an upload has two parts on their way, and the engine has connections instead of files.
 * The threads that convert results have theirs too. Under a low limit they must not take what the others need, so a
 * conversion may then find none, and fails alone.
 */
import { readdirSync, readFileSync } from "node:fs";
import type { Config } from "../config/schema.ts";
import type { UpstreamConfig } from "../config/upstreams.ts";

/** The files of the engine: journals, results and the sweep, each a few at a time. */
const FILES_COUNT = 6;
/**
 * The most connections to webhooks, of which an endpoint that does not answer holds one: `MAX_IN_FLIGHT` in
 * `webhooks/webhooks.ts`.
 */
const WEBHOOK_CONNECTIONS = 128;
/**
 * The connections to a bucket: 32 for short requests and 8 for copies (`SHORT_CONNECTIONS` and `JOIN_CONNECTIONS` in
 * `blobs/s3.ts`), and four for the results and one for the input of each of six batches (`SIDE_BY_SIDE` in `engine/steps/loops.ts`).
 */
const BUCKET_CONNECTIONS = 32 + 8 + 6 * (4 + 1);
/** A thread has five. Four convert for clients (`api/tables.ts`), two for deliveries (`deliveries/converted-files.ts`). */
const CONVERSION_COUNT = 5 * (4 + 2);
/** The part of the free descriptors that threads get at the most. */
const CONVERSION_SHARE = 0.25;
/** The connections that are being refused, and those that have not closed yet. */
const SLACK_COUNT = 2;
const PER_CONNECTION = { folder: 2, s3: 3 } as const;
/** The most connections of clients. Each also takes some 20 kB of memory. */
const MAX_CONNECTIONS = 10_000;

export interface DescriptorPlan {
  /** The most connections of clients. */
  readonly maxConnections: number;
  /** The most requests to all upstreams together. */
  readonly maxRequests: number;
  /** Warnings for the operator when the limit is too low for the configuration. */
  readonly warnings: string[];
}

export interface Descriptors {
  readonly limit: number;
  /** The descriptors in use before any connection is open. */
  readonly usedCount: number;
}

export function planDescriptors(descriptors: Descriptors | null, config: Config): DescriptorPlan {
  const { limit, usedCount } = descriptors ?? { limit: 1_000_000, usedCount: 0 };
  const { type } = config.storage;
  const bucketCount = type === "s3" ? BUCKET_CONNECTIONS : 0;
  const webhookCount = Math.min(WEBHOOK_CONNECTIONS, config.webhooks.endpoints.length);
  const fixedCount = FILES_COUNT + SLACK_COUNT + bucketCount + webhookCount;
  const perConnection = PER_CONNECTION[type];
  const restCount = limit - usedCount - fixedCount;
  const conversionCount = Math.min(CONVERSION_COUNT, Math.max(0, restCount * CONVERSION_SHARE));
  const freeCount = Math.max(2 * perConnection, restCount - Math.floor(conversionCount));
  const wantedCount = connectionsTo(config.upstreams);
  const maxRequests = Math.max(1, Math.min(wantedCount, Math.floor(freeCount / 3)));
  const maxConnections = Math.max(1, Math.floor((freeCount - maxRequests) / perConnection));
  const neededCount = usedCount + fixedCount + CONVERSION_COUNT + 3 * wantedCount;
  return {
    maxConnections: Math.min(MAX_CONNECTIONS, maxConnections),
    maxRequests,
    warnings:
      maxRequests >= wantedCount
        ? []
        : [
            `the limit of ${limit} open files is too low for the configured concurrency: at most ${maxRequests} requests to upstreams and ${maxConnections} connections of clients at a time; raise it to ${neededCount} or more (ulimit -n)`,
          ],
  };
}

/** The connections of all upstreams: one more than their slots, see `upstream/exchange/client.ts`. */
const connectionsTo = (upstreams: readonly UpstreamConfig[]) =>
  upstreams.reduce((sum, { max_concurrency }) => sum + max_concurrency + 1, 0);

/** Reduces the concurrency of the upstreams in proportion, until there are connections for all of it. */
export function fitUpstreams(
  upstreams: readonly UpstreamConfig[],
  maxRequests: number,
): UpstreamConfig[] {
  const share = Math.min(1, maxRequests / connectionsTo(upstreams));
  if (share === 1 || upstreams.length === 0) return [...upstreams];
  return upstreams.map((upstream) => {
    const max = Math.max(1, Math.floor(upstream.max_concurrency * share) - 1);
    const reserve = upstream.interactive_reserve;
    return {
      ...upstream,
      max_concurrency: max,
      min_concurrency: Math.min(max, upstream.min_concurrency),
      ...(reserve === undefined ? {} : { interactive_reserve: Math.min(reserve, max - 1) }),
    };
  });
}

/** Returns null where the system reports no limit. */
export function readDescriptors(): Descriptors | null {
  try {
    const limit = Number(
      /^Max open files\s+(\d+)/m.exec(readFileSync("/proc/self/limits", "utf8"))?.[1],
    );
    const usedCount = readdirSync("/proc/self/fd").length;
    return Number.isInteger(limit) ? { limit, usedCount } : null;
  } catch {
    return null;
  }
}
