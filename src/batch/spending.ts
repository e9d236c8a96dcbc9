/**
 * Decides how much the lines of a chunk may use, where a budget or a quota bounds what answers cost or how many tokens they
 * take. Neither is known before the answer is there, so a line that is under way counts at its estimate. A line goes out
 * only if it fits beside all that was used and all that is under way.
 */
import type { PauseReason } from "../contract/batch-extension.ts";
import type { Amount } from "./price.ts";

/** What lines use, or may use. */
export interface Spending {
  readonly tokens: number;
  readonly cost: Amount;
}

export const NO_SPENDING: Spending = { tokens: 0, cost: 0n };

export const addSpending = (a: Spending, b: Spending): Spending => ({
  tokens: a.tokens + b.tokens,
  cost: a.cost + b.cost,
});

export const subtractSpending = (a: Spending, b: Spending): Spending => ({
  tokens: a.tokens - b.tokens,
  cost: a.cost - b.cost,
});

export const isWithin = (part: Spending, whole: Spending): boolean =>
  part.tokens <= whole.tokens && part.cost <= whole.cost;

/** The reasons for a pause that a bound brings about. */
export type BoundReason = Exclude<PauseReason, "requested">;

/** One limit, and what counts against it. */
export interface Bound {
  readonly reason: BoundReason;
  readonly unit: keyof Spending;
  readonly limit: bigint;
  /** The limit as an operator or a client wrote it. */
  readonly text: string;
  /** What ended lines have used. */
  readonly used: bigint;
  /** What the lines that are under way in other chunks may use. */
  readonly reserved: bigint;
}

/** The wish of one chunk. */
export interface SpendingRequest {
  /** What its lines under way may use. */
  readonly inFlight: Spending;
  /** What its next line may use. */
  readonly needed: Spending;
  /** What its next line and those behind it may use. */
  readonly wanted: Spending;
}

export type SpendingGrant =
  /** `granted` comes on top of what is in flight, and is at least what was needed. */
  | { readonly kind: "granted"; readonly granted: Spending }
  /** The line fits only if the lines under way take less than their estimates. */
  | { readonly kind: "wait" }
  /** The line does not fit beside what was used, so it can never go out. */
  | { readonly kind: "exhausted"; readonly reason: BoundReason; readonly limit: string };

/** A chunk gets at most this part of the room that is left, so that the chunks of other workers find some, too. */
const ROOM_PARTS = 8n;
/** A grant is so many parts of the wish. */
const WISH_PARTS = 1_024n;

const inUnit = (spending: Spending, unit: keyof Spending): bigint => BigInt(spending[unit]);

export function grantOf(bounds: readonly Bound[], request: SpendingRequest): SpendingGrant {
  const { inFlight, needed, wanted } = request;
  // Without a next line, as where a chunk only gives back, those under way may be the last ones of the batch.
  const hasNext = needed.tokens > 0;
  const exhausted = bounds.find(({ used, limit, unit }) => used + inUnit(needed, unit) > limit);
  if (hasNext && exhausted !== undefined) {
    return { kind: "exhausted", reason: exhausted.reason, limit: exhausted.text };
  }
  const ahead = subtractSpending(wanted, needed);
  let parts = WISH_PARTS;
  for (const { limit, used, reserved, unit } of bounds) {
    const room = limit - used - reserved - inUnit(inFlight, unit) - inUnit(needed, unit);
    if (room < 0n) return { kind: "wait" };
    const wish = inUnit(ahead, unit);
    const possible = wish === 0n ? WISH_PARTS : (room * WISH_PARTS) / (wish * ROOM_PARTS);
    if (possible < parts) parts = possible;
  }
  const granted = {
    tokens: needed.tokens + Number((BigInt(ahead.tokens) * parts) / WISH_PARTS),
    cost: needed.cost + (ahead.cost * parts) / WISH_PARTS,
  };
  return { kind: "granted", granted };
}
