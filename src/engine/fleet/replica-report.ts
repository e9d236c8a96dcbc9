/**
 * Writes and reads what a replica reports to the others with each renewal, as JSON. Another version of batchd may have
 * written a report, so one of another format is skipped: its replica counts, but nothing is known of it.
 */
import type { BatchId } from "../../batch/batch.ts";
import type { CommonFailure } from "../../batch/forecast.ts";
import type { TargetReport } from "../../upstream/target-report.ts";
import type { RouteThroughput } from "../dispatch/fleet-routes.ts";
import type { ReportedStall } from "../steps/stalls.ts";
import type { ReportedWait } from "../steps/storage-waits.ts";

/** Grows with each change that an older version would misread. */
const FORMAT = 1;

/** What a replica is configured with that the others have to know. */
export interface CommonSettings {
  /** A hash of each group of settings that is to be the same at all replicas. */
  readonly hashes: Readonly<Record<string, string>>;
  /** The names of the locations that it delivers to. */
  readonly locations: readonly string[];
  /** Whether it can deliver to buckets of clients. */
  readonly clientBuckets: boolean;
  /** Its webhooks, each for one project or for all. */
  readonly webhooks: readonly WebhookName[];
}

export interface WebhookName {
  readonly name: string;
  /** The project whose batches it hears of; null where it is all of them. */
  readonly project: string | null;
  /** The events that it asks for; null where these are all. */
  readonly events: readonly string[] | null;
}

export interface ReplicaReport {
  /** Whether the replica runs batches. The upstreams of the others are for interactive requests only. */
  readonly isWorker: boolean;
  /** Whether it can keep answers at the moment. */
  readonly canWrite: boolean;
  /** The last date at which it is known to have been able to write, by the clock of the store. Older versions do not say. */
  readonly writableAtMs?: number;
  readonly targets: readonly TargetReport[];
  readonly routes: readonly RouteThroughput[];
  /** The failures that the first lines of a batch had in common here, the latest ones. */
  readonly commonFailures: readonly (readonly [BatchId, CommonFailure])[];
  /** The batches whose files or rows could not be read or written here, and since when. Older versions do not say. */
  readonly storageWaits?: readonly ReportedWait[];
  /** The chunks that are held here without a line under way. Older versions do not say. */
  readonly stalls?: readonly ReportedStall[];
  /**
   * The date at which the replica was last asked to have the configuration read again, by the clock of the store. Older
   * versions do not say.
   */
  readonly reloadAskedAtMs?: number;
  /** Older versions do not say. */
  readonly common?: CommonSettings;
}

export const encodeReport = (report: ReplicaReport): string =>
  JSON.stringify({ format: FORMAT, ...report });

/** Returns null for a report of another format. */
export function decodeReport(text: string): ReplicaReport | null {
  const { format, ...report } = JSON.parse(text) as ReplicaReport & { readonly format: number };
  return format === FORMAT ? report : null;
}
