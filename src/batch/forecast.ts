/** The predictions for a batch: its end, its place in the queue, and the reason for a wait. */
import type { WaitingReason } from "../contract/batch-extension.ts";

/** The reason for which no line of a batch proceeds at the moment. */
export interface Waiting {
  readonly reason: WaitingReason;
  readonly sinceMs: number;
  /** The fault of an upstream. It holds nothing of the answer but the status and the code; null without a fault. */
  readonly upstreamError: string | null;
}

/** A wait as it is found, without its beginning. */
export type Wait = Omit<Waiting, "sinceMs">;

/** The failure that all first lines of a batch have in common. */
export interface CommonFailure {
  readonly lineCount: number;
  /** The status of the answers; null when there was no answer. */
  readonly statusCode: number | null;
  readonly code: string | null;
  /** The message of the first answer. */
  readonly message: string | null;
}

/** The prediction for a batch, from what was measured so far. */
export interface Forecast {
  /** The time at which the last line will have its answer; null until it can be measured. */
  readonly etaAtMs: number | null;
  /** Whether the batch may not be done at the end of its window. */
  readonly isAtRisk: boolean;
  /** The place among the batches of its project that wait; 0 for a batch whose lines are in flight, null when it is not known. */
  readonly queuePosition: number | null;
  /** The reason for the wait; null while lines proceed. */
  readonly waiting: Waiting | null;
  readonly commonFailure: CommonFailure | null;
}

/** The order of importance: the first reason is reported when the targets of a route, or its replicas, differ. */
const ORDER: readonly WaitingReason[] = [
  "refused_credentials",
  "out_of_quota",
  "wrong_address",
  "upstream_down",
  "journal_not_writable",
  "storage_unavailable",
  "retrying",
  "no_room",
  "outside_hours",
];

/** Returns the reason to report of several; null when lines go on at one of them. */
export function worstOf<Why extends { readonly reason: WaitingReason }>(
  all: readonly (Why | null)[],
): Why | null {
  const known = all.filter((each) => each !== null);
  if (known.length < all.length) return null;
  const rankOf = ({ reason }: Why) => ORDER.indexOf(reason);
  return known.toSorted((a, b) => rankOf(a) - rankOf(b))[0] ?? null;
}
