/**
 * How the descriptors of the process are shared out, so that it never needs one that it does not have. A process that has
 * none left cannot write its journal, cannot reach a model and cannot tell anybody.
 *
 * Some are kept for the files of the engine. Of the others the upstreams get what their concurrency asks for, but not
 * more than a third, and clients the rest, two for each connection: an upload or a download has a file besides.
 */
import { readdirSync, readFileSync } from "node:fs";
import type { Config } from "../config/schema.ts";
import type { UpstreamConfig } from "../config/upstreams.ts";

/** Journals, results, the sweep and webhooks, each a few at a time. */
const FILES_COUNT = 6;
/** Connections that are being turned away, and those that have not closed yet. */
const SLACK_COUNT = 2;
const PER_CONNECTION = 2;
/** Each takes some 20 kB of memory too. */
const MAX_CONNECTIONS = 10_000;

export interface DescriptorPlan {
  /** Of clients. */
  readonly maxConnections: number;
  /** To all upstreams together. */
  readonly maxRequests: number;
  /** What the operator is told when the limit does not do for the configuration. */
  readonly warnings: string[];
}

export interface Descriptors {
  readonly limit: number;
  /** Before anything was connected. */
  readonly usedCount: number;
}

export function planDescriptors(descriptors: Descriptors | null, config: Config): DescriptorPlan {
  const { limit, usedCount } = descriptors ?? { limit: 1_000_000, usedCount: 0 };
  const freeCount = Math.max(2 * PER_CONNECTION, limit - usedCount - FILES_COUNT - SLACK_COUNT);
  const wantedCount = connectionsTo(config.upstreams);
  const maxRequests = Math.max(1, Math.min(wantedCount, Math.floor(freeCount / 3)));
  const maxConnections = Math.max(1, Math.floor((freeCount - maxRequests) / PER_CONNECTION));
  const neededCount = usedCount + FILES_COUNT + SLACK_COUNT + 3 * wantedCount;
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

/** One more than there are slots: see `upstream/exchange/client.ts`. */
const connectionsTo = (upstreams: readonly UpstreamConfig[]) =>
  upstreams.reduce((sum, { max_concurrency }) => sum + max_concurrency + 1, 0);

/** The upstreams with as much concurrency as there are connections for, each with its share of it. */
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

/** Null where the system does not tell, or sets no limit. */
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
