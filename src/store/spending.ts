/**
 * The part of the store for budgets, and for the quotas of what answers take. The store decides whether a line may go out,
 * because several workers send the lines of a batch, and of a project.
 */
import type { BatchId } from "../batch/batch.ts";
import { dayOf, monthOf } from "../batch/model-usage.ts";
import {
  type Amount,
  amountOf,
  type Consumption,
  costOf,
  type Decimal,
  parsePrice,
} from "../batch/price.ts";
import type { Quotas } from "../batch/project.ts";
import type {
  Bound,
  BoundReason,
  Spending,
  SpendingGrant,
  SpendingRequest,
} from "../batch/spending.ts";
import type { ChunkLease } from "./leases.ts";
import { QuotaExceeded } from "./quotas.ts";

export type SpendingQuotas = Pick<Quotas, "tokensPerDay" | "costPerMonth">;

export const boundsSpending = (quotas: SpendingQuotas | undefined): quotas is SpendingQuotas =>
  quotas !== undefined && (quotas.tokensPerDay !== null || quotas.costPerMonth !== null);

export interface Reservation extends SpendingRequest {
  readonly project: string;
  readonly quotas: SpendingQuotas;
}

/** A batch that a quota of its project has paused. */
export interface QuotaPause {
  /** The place of the batch among all, from which the next page goes on. */
  readonly sequence: number;
  readonly batchId: BatchId;
  readonly project: string;
  readonly reason: BoundReason;
  readonly sinceMs: number;
  /** The limit that was reached, as the configuration had it. */
  readonly limit: string;
}

export type ReservationResult = SpendingGrant | { readonly kind: "not_held" };

export const QUOTA_PAUSES_PAGE = 500;

/** What the rows of batches say of a pause. */
type PausedRow = Pick<QuotaPause, "sequence" | "batchId" | "project"> & {
  readonly pauseReason: QuotaPause["reason"] | "requested" | null;
  readonly pausedAtMs: number | null;
  readonly pauseLimit: QuotaPause["limit"] | null;
};

export const quotaPausesOf = (rows: readonly PausedRow[]): QuotaPause[] =>
  rows.flatMap(({ pauseReason, pausedAtMs, pauseLimit, ...pause }) =>
    pauseReason === null ||
    pauseReason === "requested" ||
    pausedAtMs === null ||
    pauseLimit === null
      ? []
      : [{ ...pause, reason: pauseReason, sinceMs: pausedAtMs, limit: pauseLimit }],
  );

export interface SpendingStore {
  /**
   * Reserves what the next lines of a chunk may use. A batch whose next line does not fit is paused, in the same commit.
   * `not_held` also stands for a batch that sends no lines any more.
   */
  reserveIfLeased(lease: ChunkLease, reservation: Reservation): Promise<ReservationResult>;
  /** Lists the batches behind a place that a quota has paused, some hundred at a time. Nothing follows an empty page. */
  listQuotaPauses(after: number): Promise<QuotaPause[]>;
}

/** A sum of answers at one price, as a row of `model_usage` has it. */
export interface PricedSum extends Consumption {
  readonly price: string;
}

export interface ReservedRow {
  readonly batchId: BatchId;
  readonly chunkNumber: number;
  readonly tokens: number;
  readonly cost: string;
}

/**
 * Whether a chunk gives back all that it had. Nothing is stored of it then: a reservation of nothing stands for a chunk whose next
 * line waits for room.
 */
export const isGivenBack = ({ needed }: SpendingRequest, kept: Spending): boolean =>
  needed.tokens === 0 && kept.tokens === 0;

/** What the store knows, within the transaction that decides. */
export interface SpendingFacts {
  readonly budget: Decimal | null;
  /** The answers of the batch; read only where it has a budget. */
  readonly ofBatch: readonly PricedSum[];
  /** The answers of the project in this month; read only where its cost is bounded. */
  readonly ofMonth: readonly PricedSum[];
  /** The tokens of the project today; read only where they are bounded. */
  readonly tokensToday: number;
  /** The reservations of the project that are in force. */
  readonly reserved: readonly ReservedRow[];
}

const costOfSums = (sums: readonly PricedSum[]): Amount =>
  sums.reduce((total, { price: key, ...sum }) => {
    const price = parsePrice(key);
    return price === null ? total : total + costOf(sum, price);
  }, 0n);

/** Returns the limits for the lines of a chunk, and what counts against them. */
export function boundsOf(
  { batchId, chunkNumber }: ChunkLease,
  { tokensPerDay, costPerMonth }: SpendingQuotas,
  facts: SpendingFacts,
): Bound[] {
  const others = facts.reserved.filter(
    (row) => row.batchId !== batchId || row.chunkNumber !== chunkNumber,
  );
  const costReserved = (rows: readonly ReservedRow[]) =>
    rows.reduce((sum, { cost }) => sum + BigInt(cost), 0n);
  const bounds: Bound[] = [];
  if (facts.budget !== null) {
    bounds.push({
      reason: "budget",
      unit: "cost",
      text: facts.budget,
      limit: amountOf(facts.budget),
      used: costOfSums(facts.ofBatch),
      reserved: costReserved(others.filter((row) => row.batchId === batchId)),
    });
  }
  if (costPerMonth !== null) {
    bounds.push({
      reason: "cost_per_month",
      unit: "cost",
      text: costPerMonth,
      limit: amountOf(costPerMonth),
      used: costOfSums(facts.ofMonth),
      reserved: costReserved(others),
    });
  }
  if (tokensPerDay !== null) {
    bounds.push({
      reason: "tokens_per_day",
      unit: "tokens",
      text: String(tokensPerDay),
      limit: BigInt(tokensPerDay),
      used: BigInt(facts.tokensToday),
      reserved: BigInt(others.reduce((sum, { tokens }) => sum + tokens, 0)),
    });
  }
  return bounds;
}

/** Throws when a project has used up what it may, and so may create no batch. */
export function assertNotUsedUp(
  { tokensPerDay, costPerMonth }: SpendingQuotas,
  { ofMonth, tokensToday }: Pick<SpendingFacts, "ofMonth" | "tokensToday">,
): void {
  if (tokensPerDay !== null && tokensToday >= tokensPerDay) {
    throw new QuotaExceeded("tokens_per_day", tokensPerDay);
  }
  if (costPerMonth !== null && costOfSums(ofMonth) >= amountOf(costPerMonth)) {
    throw new QuotaExceeded("cost_per_month", costPerMonth);
  }
}

/** Whether the time is over for which the quota was used up, or the limit is another one now. */
export function mayGoOn(
  { reason, sinceMs, limit }: QuotaPause,
  { tokensPerDay, costPerMonth }: SpendingQuotas,
  today: string,
): boolean {
  const since = dayOf(sinceMs);
  if (reason === "tokens_per_day") return since !== today || String(tokensPerDay) !== limit;
  return monthOf(since) !== monthOf(today) || costPerMonth !== limit;
}
