/**
 * Holds the lines of one chunk to the budget of their batch and to the quotas of their project. The store grants what
 * the next lines may use (`store/spending.ts`), many lines at a time while there is room, so most lines do not have to ask. A line
 * counts at its estimate until its record is durable: from then on the store counts what it really took.
 *
 * Near a limit a line may have to wait until others take less than their estimates. The batch is paused only when its
 * next line would not fit even then. A chunk whose lines do not get out keeps nothing for those behind them: a slow target, or
 * one that is down, would keep the room from all others of the project.
 */
import type { Batch } from "../batch/batch.ts";
import { costOf, type Price } from "../batch/price.ts";
import type { RulesOf } from "../batch/project.ts";
import {
  addSpending,
  isWithin,
  NO_SPENDING,
  type Spending,
  type SpendingRequest,
  subtractSpending,
} from "../batch/spending.ts";
import { estimateInputTokens } from "../batch/token-estimate.ts";
import { type Clock, sleep } from "../clock.ts";
import type { ClaimedChunk } from "../store/chunks.ts";
import { boundsSpending, type ReservationResult, type SpendingQuotas } from "../store/spending.ts";
import type { Store } from "../store/store.ts";
import type { Log } from "../telemetry/log.ts";
import type { UpstreamRequest } from "../upstream/upstream.ts";
import type { Leases, Run } from "./lease.ts";

/** The pauses before a line that does not fit now asks again: each is twice the one before. */
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 2_000;
/** The wait of a line after which its chunk gives back what it has reserved for the lines behind it. */
const PATIENCE_MS = 2_000;

export interface MeterDeps {
  readonly store: Pick<Store, "reserveIfLeased">;
  readonly leases: Pick<Leases, "renewIfLate">;
  readonly rulesOf: RulesOf;
  readonly clock: Clock;
  readonly log: Log;
}

interface Metered {
  readonly claimed: ClaimedChunk;
  readonly run: Run;
  /** Makes the records so far durable. */
  readonly flush: () => Promise<void>;
}

/** Returns null where nothing bounds what the lines of the chunk use. */
export const meterFor = (metered: Metered, deps: MeterDeps): SpendingMeter | null =>
  isBounded(metered.claimed.batch, deps) ? new SpendingMeter(metered, deps) : null;

/** Whether something bounds what the lines of a batch use. The quotas of its project may come at any moment. */
export const isBounded = (
  { budget, project }: Pick<Batch, "budget" | "project">,
  { rulesOf }: Pick<MeterDeps, "rulesOf">,
): boolean => budget !== null || boundsSpending(rulesOf(project).quotas);

/** Returns what a line may use that goes out at this price. */
export function estimateOf(
  { body, answerTokens: outputTokens }: Pick<UpstreamRequest, "body" | "answerTokens">,
  price: Price | null,
): Spending {
  const inputTokens = estimateInputTokens(body.length);
  const use = { requestCount: 1, inputTokens, cachedTokens: 0, outputTokens };
  return { tokens: inputTokens + outputTokens, cost: price === null ? 0n : costOf(use, price) };
}

export class SpendingMeter {
  readonly #metered: Metered;
  readonly #deps: MeterDeps;
  /** What the lines may use whose records are not durable yet. */
  #inFlight: Spending = NO_SPENDING;
  /** What the store has reserved for the chunk. */
  #reserved: Spending = NO_SPENDING;
  /** The quotas of the project under which that was reserved. */
  #quotas: SpendingQuotas;
  #leftCount: number;

  constructor(metered: Metered, deps: MeterDeps) {
    this.#metered = metered;
    this.#deps = deps;
    this.#leftCount = metered.claimed.chunk.lineCount;
    this.#quotas = this.#currentQuotas();
  }

  /** Lets a line go out. Returns a promise only where the store has to be asked: false when the run ends first. */
  admit(needed: Spending): true | Promise<boolean> {
    const inFlight = addSpending(this.#inFlight, needed);
    const isReserved = isWithin(inFlight, this.#reserved);
    // Other quotas may allow less than was reserved.
    if (!isReserved || !areEqual(this.#currentQuotas(), this.#quotas)) return this.#ask(needed);
    this.#take(needed);
    return true;
  }

  /**
   * A line is not under way any more: its record is durable, or there is none. Its part of the reservation is used up, because
   * the store counts what the line really took.
   */
  settle(estimate: Spending): void {
    this.#inFlight = subtractSpending(this.#inFlight, estimate);
    this.#reserved = subtractSpending(this.#reserved, estimate);
  }

  /** Waits for what a line needs beside its part of the limits. */
  async during<T>(wait: Promise<T>): Promise<T> {
    let isOver = false;
    // Where the store cannot be asked, it has more reserved than the chunk uses, until the next line asks.
    const giveBack = () => void this.#giveBack(() => isOver).catch(() => {});
    const cancel = this.#deps.clock.after(PATIENCE_MS, giveBack);
    try {
      return await wait;
    } finally {
      isOver = true;
      cancel();
    }
  }

  async #giveBack(isOver: () => boolean): Promise<void> {
    await this.#deps.leases.renewIfLate();
    if (isOver() || isWithin(this.#reserved, this.#inFlight)) return;
    // The store hears of this before the next line asks it.
    this.#reserved = this.#inFlight;
    this.#endIfPaused(await this.#reserve({ needed: NO_SPENDING, wanted: NO_SPENDING }));
  }

  #reserve(request: Pick<SpendingRequest, "needed" | "wanted">): Promise<ReservationResult> {
    const { lease, batch } = this.#metered.claimed;
    const quotas = this.#currentQuotas();
    this.#quotas = quotas;
    const held = { project: batch.project, quotas, inFlight: this.#inFlight };
    return this.#deps.store.reserveIfLeased(lease, { ...held, ...request });
  }

  /** Ends the run where its batch sends no lines any more, and returns whether it does. */
  #endIfPaused(result: ReservationResult): boolean {
    if (result.kind === "granted" || result.kind === "wait") return false;
    const { claimed, run } = this.#metered;
    const { clock, log } = this.#deps;
    if (result.kind === "exhausted") {
      const { id: batch, project } = claimed.batch;
      log.info({ batch, project, reason: result.reason }, "batch.paused");
    }
    run.end("pause", null, clock);
    return true;
  }

  #take(needed: Spending): void {
    this.#inFlight = addSpending(this.#inFlight, needed);
    if (this.#leftCount > 1) this.#leftCount--;
  }

  async #ask(needed: Spending): Promise<boolean> {
    const { run, flush } = this.#metered;
    const { clock, leases } = this.#deps;
    const wanted = times(needed, this.#leftCount);
    for (let pauseMs = FIRST_PAUSE_MS; !run.stop.aborted; pauseMs *= 2) {
      // A reservation ends with its lease: after a pause of the machine, what other chunks have reserved would be granted again.
      await leases.renewIfLate();
      const result = await this.#reserve({ needed, wanted });
      if (result.kind === "granted") {
        // Lines may have been settled meanwhile. What was reserved for them is not left for others.
        this.#reserved = addSpending(this.#inFlight, result.granted);
        this.#take(needed);
        return true;
      }
      this.#reserved = this.#inFlight;
      if (this.#endIfPaused(result)) return false;
      await flush();
      await sleep(clock, Math.min(pauseMs, LONGEST_PAUSE_MS), run.stop);
    }
    return false;
  }

  #currentQuotas(): SpendingQuotas {
    return this.#deps.rulesOf(this.#metered.claimed.batch.project).quotas;
  }
}

const areEqual = (a: SpendingQuotas, b: SpendingQuotas): boolean =>
  a.tokensPerDay === b.tokensPerDay && a.costPerMonth === b.costPerMonth;

const times = ({ tokens, cost }: Spending, count: number): Spending => ({
  tokens: tokens * count,
  cost: cost * BigInt(count),
});
