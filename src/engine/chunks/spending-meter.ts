/**
 * Holds the lines of one chunk to the budget of their batch and to the quotas of their project. The store grants what
 * the next lines may use (`store/spending.ts`), many lines at a time while there is room, so most lines do not have to ask. A
 * line counts at its estimate while it is at a target, and at what its answer took, where that is more, until its record is
 * durable: from then on the store counts what it really took. A line that waits for a target counts for nothing, and has to fit
 * again when it has its slot.
 *
 * Near a limit a line may have to wait until others take less than their estimates. The batch is paused only when its
 * next line would not fit even then. A chunk whose lines do not get out keeps nothing for them: a slow target, or one that is
 * down, would keep the room from all others of the project.
 */
import type { Batch, Usage } from "../../batch/batch.ts";
import { addAnswer } from "../../batch/model-usage.ts";
import { costOf, NO_CONSUMPTION, type Price } from "../../batch/price.ts";
import type { RulesOf } from "../../batch/project.ts";
import {
  addSpending,
  isWithin,
  NO_SPENDING,
  type Spending,
  type SpendingRequest,
  subtractSpending,
} from "../../batch/spending.ts";
import { type Cancel, type Clock, every, sleep } from "../../clock.ts";
import type { ClaimedChunk } from "../../store/chunks.ts";
import {
  boundsSpending,
  type ReservationResult,
  type SpendingQuotas,
} from "../../store/spending.ts";
import type { Store } from "../../store/store.ts";
import type { Log } from "../../telemetry/log.ts";
import type { Allowance, UpstreamRequest } from "../../upstream/request.ts";
import type { Leases, Run } from "../steps/lease.ts";

/** The pauses before a line that does not fit now asks again: each is twice the one before. */
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 2_000;
/** A chunk gives back what it has not used when no line went out for so long, or for twice as long at the most. */
const PATIENCE_MS = 2_000;
/** For so long after a line did not fit, the store is not asked for other lines that have waited: there may be hundreds. */
const REFUSED_MS = 900;

/** `ended` means that no line of the chunk goes out any more. */
type Answer = "granted" | "wait" | "ended";
type Asked = Pick<SpendingRequest, "needed" | "wanted">;

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
  {
    inputTokens,
    answerTokens: outputTokens,
  }: Pick<UpstreamRequest, "inputTokens" | "answerTokens">,
  price: Price | null,
): Spending {
  const use = { requestCount: 1, inputTokens, cachedTokens: 0, outputTokens };
  return { tokens: inputTokens + outputTokens, cost: price === null ? 0n : costOf(use, price) };
}

/** Returns what an answer took at this price. */
export const takenBy = (usage: Usage, price: Price | null): Spending => {
  const sum = addAnswer(NO_CONSUMPTION, usage);
  const tokens = sum.inputTokens + sum.outputTokens;
  return { tokens, cost: price === null ? 0n : costOf(sum, price) };
};

/** What one line may use. It has that while it is at a target, and until its record is durable. */
export class LineAllowance implements Allowance {
  readonly #meter: SpendingMeter;
  #estimate: Spending;
  #isTaken = false;

  constructor(meter: SpendingMeter, estimate: Spending) {
    this.#meter = meter;
    this.#estimate = estimate;
  }

  /** Takes it for the first time, and waits while there is no room. Resolves to false when the run ends first. */
  admit(): true | Promise<boolean> {
    return this.#taken(this.#meter.admit(this.#estimate));
  }

  take(): true | Promise<boolean> {
    return this.#isTaken || this.#taken(this.#meter.take(this.#estimate));
  }

  #taken(taken: true | Promise<boolean>): true | Promise<boolean> {
    if (taken !== true) return this.#takenLater(taken);
    this.#isTaken = true;
    return true;
  }

  async #takenLater(taken: Promise<boolean>): Promise<boolean> {
    this.#isTaken = await taken;
    return this.#isTaken;
  }

  giveBack(): void {
    if (this.#isTaken) this.#meter.giveBack(this.#estimate);
    this.#isTaken = false;
  }

  /** Counts what the answer took in place of its estimate, where it is more. */
  took(taken: Spending): void {
    if (!this.#isTaken) return;
    const excess = excessOf(taken, this.#estimate);
    this.#estimate = addSpending(this.#estimate, excess);
    this.#meter.exceed(excess);
  }

  /** Ends it: the record of the line is durable, or there is none. */
  settle(): void {
    if (this.#isTaken) this.#meter.settle(this.#estimate);
    this.#isTaken = false;
  }
}

export class SpendingMeter {
  readonly #metered: Metered;
  readonly #deps: MeterDeps;
  /** What the lines may use that are at a target, or whose records are not durable yet. */
  #inFlight: Spending = NO_SPENDING;
  /** What the store has reserved for the chunk, at least. */
  #reserved: Spending = NO_SPENDING;
  /** The quotas of the project under which that was reserved. */
  #quotas: SpendingQuotas;
  /** The lines that have not gone out, or wait for a target. */
  #leftCount: number;
  /** A line that did not fit lately, and until when that is believed. */
  #refused: { readonly needed: Spending; readonly untilMs: number } | null = null;
  /** Whether the store may have more reserved than `#reserved`: an answer has used up parts of other lines since it was asked. */
  #isExceeded = false;
  /** Whether a line has gone out since the last look. */
  #isMoving = false;
  /** The latest question to the store. */
  #question: Promise<unknown> = Promise.resolve();
  /** Ends the looks. */
  readonly close: Cancel;

  constructor(metered: Metered, deps: MeterDeps) {
    this.#metered = metered;
    this.#deps = deps;
    this.#leftCount = metered.claimed.chunk.lineCount;
    this.#quotas = this.#currentQuotas();
    this.close = every(deps.clock, PATIENCE_MS, () => this.#giveBackIfIdle());
  }

  allowance(estimate: Spending): LineAllowance {
    return new LineAllowance(this, estimate);
  }

  /** Lets a line go out for the first time, as {@link LineAllowance.admit} does. */
  admit(needed: Spending): true | Promise<boolean> {
    return this.#takeReserved(needed) || this.#askForRoom(needed);
  }

  /** Lets a line go out that has waited, as {@link Allowance.take} does. */
  take(needed: Spending): true | Promise<boolean> {
    return this.#takeReserved(needed) || this.#askAgain(needed);
  }

  /** A line waits. Its part is for other lines of the chunk, until it goes back to the store. */
  giveBack(estimate: Spending): void {
    this.#inFlight = subtractSpending(this.#inFlight, estimate);
    this.#leftCount++;
  }

  /** A line has ended. Its part of the reservation is used up, because the store counts what the line really took. */
  settle(estimate: Spending): void {
    this.#inFlight = subtractSpending(this.#inFlight, estimate);
    this.#reserved = subtractSpending(this.#reserved, estimate);
  }

  /**
   * An answer took so much more than its estimate. Until its record is durable, that counts as under way, so there may be no room
   * any more for the lines behind it.
   */
  exceed(excess: Spending): void {
    if (isWithin(excess, NO_SPENDING)) return;
    this.#inFlight = addSpending(this.#inFlight, excess);
    this.#isExceeded = true;
  }

  #takeReserved(needed: Spending): boolean {
    const inFlight = addSpending(this.#inFlight, needed);
    // Other quotas may allow less than was reserved.
    if (!isWithin(inFlight, this.#reserved) || !areEqual(this.#currentQuotas(), this.#quotas))
      return false;
    this.#inFlight = inFlight;
    this.#noteSent();
    return true;
  }

  #noteSent(): void {
    this.#isMoving = true;
    if (this.#leftCount > 1) this.#leftCount--;
  }

  #giveBackIfIdle(): void {
    const { run } = this.#metered;
    const hasRest = this.#isExceeded || !isWithin(this.#reserved, this.#inFlight);
    const isIdle = hasRest && !this.#isMoving;
    this.#isMoving = false;
    if (!isIdle || run.stop.aborted) return;
    // Where the store cannot be asked, it has more reserved than the chunk uses, until the next line asks.
    const nothing = { needed: NO_SPENDING, wanted: NO_SPENDING };
    void this.#inTurn(() => this.#reserveNow(nothing)).catch(() => {});
  }

  async #askForRoom(needed: Spending): Promise<boolean> {
    const { run, flush } = this.#metered;
    const { clock } = this.#deps;
    for (let pauseMs = FIRST_PAUSE_MS; !run.stop.aborted; pauseMs *= 2) {
      const answer = await this.#ask(needed);
      if (answer !== "wait") return answer === "granted";
      await flush();
      await sleep(clock, Math.min(pauseMs, LONGEST_PAUSE_MS), run.stop);
    }
    return false;
  }

  async #askAgain(needed: Spending): Promise<boolean> {
    const answer = await this.#ask(needed, () => this.#isRefused(needed));
    return answer === "granted";
  }

  #isRefused(needed: Spending): boolean {
    const refused = this.#refused;
    if (refused === null || this.#deps.clock.elapsedMs() >= refused.untilMs) return false;
    return isWithin(refused.needed, needed);
  }

  #ask(needed: Spending, isRefused = () => false): Promise<Answer> {
    return this.#inTurn(async () => {
      // The answer to the question before may have room for this line, too.
      if (this.#takeReserved(needed)) return "granted";
      if (isRefused()) return "wait";
      const answer = await this.#reserveNow({ needed, wanted: times(needed, this.#leftCount) });
      const untilMs = this.#deps.clock.elapsedMs() + REFUSED_MS;
      this.#refused = answer === "wait" ? { needed, untilMs } : null;
      return answer;
    });
  }

  /** Each question to the store is for the whole of the chunk: so it must know the answer to the one before it. */
  #inTurn(ask: () => Promise<Answer>): Promise<Answer> {
    const question = this.#question.then(ask);
    this.#question = question.catch(() => {});
    return question;
  }

  async #reserveNow(request: Asked): Promise<Answer> {
    const { claimed, run } = this.#metered;
    // A reservation ends with its lease: after a pause of the machine, what other chunks have reserved would be granted again.
    await this.#deps.leases.renewIfLate();
    if (run.stop.aborted) return "ended";
    const quotas = this.#currentQuotas();
    this.#quotas = quotas;
    this.#isExceeded = false;
    // What is left beside the lines in flight goes back with the question. Lines may be settled before its answer is there.
    this.#reserved = this.#inFlight;
    const held = { project: claimed.batch.project, quotas, inFlight: this.#inFlight };
    const result = await this.#deps.store.reserveIfLeased(claimed.lease, { ...held, ...request });
    if (result.kind === "granted") {
      this.#reserved = addSpending(this.#reserved, result.granted);
      this.#inFlight = addSpending(this.#inFlight, request.needed);
      if (request.needed !== NO_SPENDING) this.#noteSent();
    }
    return this.#answerOf(result);
  }

  /** Ends the run where its batch sends no lines any more. */
  #answerOf(result: ReservationResult): Answer {
    if (result.kind === "granted" || result.kind === "wait") return result.kind;
    const { claimed, run } = this.#metered;
    const { clock, log } = this.#deps;
    if (result.kind === "exhausted") {
      const { id: batch, project } = claimed.batch;
      log.info({ batch, project, reason: result.reason }, "batch.paused");
    }
    run.end("pause", null, clock);
    return "ended";
  }

  #currentQuotas(): SpendingQuotas {
    return this.#deps.rulesOf(this.#metered.claimed.batch.project).quotas;
  }
}

const areEqual = (a: SpendingQuotas, b: SpendingQuotas): boolean =>
  a.tokensPerDay === b.tokensPerDay && a.costPerMonth === b.costPerMonth;

const excessOf = (taken: Spending, estimate: Spending): Spending => ({
  tokens: Math.max(0, taken.tokens - estimate.tokens),
  cost: taken.cost > estimate.cost ? taken.cost - estimate.cost : 0n,
});

const times = ({ tokens, cost }: Spending, count: number): Spending => ({
  tokens: tokens * count,
  cost: cost * BigInt(count),
});
