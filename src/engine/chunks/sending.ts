/**
 * Sends the lines of a chunk: each is read, gets a slot, is sent, and ends as a record in the journal.
 * `chunk-runner.ts` works on a chunk as a whole. This file is its hot path, so values that are the same for all lines
 * are made once.
 */
import type { ParsedLine } from "../../batch/line.ts";
import { failureOf } from "../../batch/line-failure.ts";
import { type FinalOutcome, INTERRUPTED, isSuccess, outcomeLine } from "../../batch/outcome.ts";
import type { Price } from "../../batch/price.ts";
import type { Spending } from "../../batch/spending.ts";
import type { Clock } from "../../clock.ts";
import type { MemoryBudget, Room } from "../../resources/memory-budget.ts";
import type { Log } from "../../telemetry/log.ts";
import { endingOf, NO_SPAN, type Span } from "../../telemetry/tracing.ts";
import type { SplitLine } from "../../text/split.ts";
import type { RequestKind, UpstreamRequest } from "../../upstream/request.ts";
import type { Route, Slot } from "../../upstream/upstream.ts";
import type { HandOut } from "../dispatch/route-queue.ts";
import type { ChunkStart } from "../dispatch/running-chunk.ts";
import type { Journal } from "../journal/journal.ts";
import type { Pricing } from "../journal/pricing.ts";
import type { Run } from "../steps/lease.ts";
import type { ChunkTrace } from "./chunk-trace.ts";
import type { CommonFailures } from "./common-failures.ts";
import { checked, requestOf } from "./line-request.ts";
import { parsedLine } from "./parsed-line.ts";
import { estimateOf, type LineAllowance, type SpendingMeter, takenBy } from "./spending-meter.ts";

/** A chunk that is worked on under its lease. */
export interface ChunkRun extends Omit<ChunkStart, "handOut"> {
  readonly run: Run;
  readonly handOut: HandOut;
}

interface SendingParts {
  readonly journal: Journal;
  readonly trace: ChunkTrace;
  readonly log: Log;
  readonly memory: MemoryBudget;
  readonly commonFailures: CommonFailures;
  readonly pricing: Pick<Pricing, "priceOf">;
  /** It is null where nothing bounds what the lines use. */
  readonly meter: SpendingMeter | null;
  /** Ends the run, and returns true, when it needs a meter and has none. */
  readonly endForMeter: () => boolean;
  readonly clock: Pick<Clock, "elapsedMs">;
}

/**
 * The lines of a chunk that are under way. Tens of thousands of lines a second pass here, so each may make one
 * promise only.
 */
export class Sending {
  readonly #chunkRun: ChunkRun;
  readonly #parts: SendingParts;
  /** The request kind of most of its lines: a chunk may hold lines for several names of one route. */
  readonly #kind: RequestKind;
  #underWayCount = 0;
  #resolveSettled: (() => void) | null = null;
  /** Resolves when the journal has room again; null while it has. */
  #journalFull: Promise<void> | null = null;
  recordedCount = 0;
  /** The models of lines for which this server has no target any more. */
  readonly unserved = new Set<string>();
  failure: Error | null = null;

  constructor(chunkRun: ChunkRun, parts: SendingParts) {
    this.#chunkRun = chunkRun;
    this.#parts = parts;
    const { batch, chunk } = chunkRun.claimed;
    this.#kind = { project: batch.project, endpoint: batch.endpoint, model: chunk.model };
  }

  /**
   * Sends the lines that are not answered yet, each as soon as it has a slot. Returns false when the run ends first.
   */
  async takeOn(lines: Iterable<SplitLine>, answered: ReadonlySet<number>): Promise<boolean> {
    const { handOut, route, run } = this.#chunkRun;
    const { endForMeter } = this.#parts;
    for (const line of lines) {
      if (!answered.has(line.number)) {
        // Answers that cannot be written hold back the lines behind them.
        if (this.#journalFull !== null) await this.#journalFull;
        for (let held = this.#held(); held !== null; held = this.#held()) {
          await held;
        }
        if (run.stop.aborted || endForMeter()) return false;
        const reading = this.#read(line);
        const ready = reading instanceof Promise ? await reading : reading;
        if (ready !== null) {
          const admitted = ready.allowance === null || this.#admit(ready, ready.allowance);
          if (admitted !== true && !(await admitted)) return false;
          // A line that goes another way must not keep a place here while it waits.
          const asked = ready.route === route ? handOut.acquire(ready.request) : null;
          if (asked instanceof Promise) ready.allowance?.giveBack();
          const slot = asked instanceof Promise ? await asked : asked;
          this.#underWayCount++;
          void this.#send(ready, slot);
          if (slot === null && run.stop.aborted) return false;
        }
      }
      handOut.lineTaken();
    }
    return true;
  }

  /** Says whether the line may go out beside all that was used and is under way. Most lines make no promise. */
  #admit(line: ReadyLine, allowance: LineAllowance): true | Promise<boolean> {
    const admitted = allowance.admit();
    return admitted === true || this.#admitLater(line, admitted);
  }

  async #admitLater(line: ReadyLine, admitted: Promise<boolean>): Promise<boolean> {
    try {
      if (await admitted) return true;
    } catch (cause) {
      this.#fail(cause);
    }
    if (line.span !== NO_SPAN) line.span.end(endingOf(INTERRUPTED));
    line.room.release();
    return false;
  }

  /**
   * Returns a wait while every target refuses the lines of the chunk. They stay in the chunk, so they take no memory
   * of their own and no place.
   */
  #held(): Promise<void> | null {
    const { route, run } = this.#chunkRun;
    return run.stop.aborted ? null : route.held(this.#kind, run.stop);
  }

  /** Resolves once no line is under way. */
  async settled(): Promise<void> {
    if (this.#underWayCount === 0) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#resolveSettled = resolve;
    await promise;
  }

  /**
   * Returns null when the line cannot be sent, which fails the run after its last line. Only a long line makes a
   * promise.
   */
  #read(line: SplitLine): ReadyLine | null | Promise<ReadyLine | null> {
    try {
      const parsed = line.bytes === null ? null : parsedLine(line.bytes);
      return parsed instanceof Promise ? this.#readLong(line, parsed) : this.#ready(line, parsed);
    } catch (cause) {
      return this.#fail(cause);
    }
  }

  async #readLong(line: SplitLine, parsed: Promise<ParsedLine | null>): Promise<ReadyLine | null> {
    try {
      return this.#ready(line, await parsed);
    } catch (cause) {
      return this.#fail(cause);
    }
  }

  #fail(cause: unknown): null {
    this.failure ??= new Error("a line could not be sent", { cause });
    return null;
  }

  #ready(line: SplitLine, read: ParsedLine | null): ReadyLine {
    const { claimed, routeOf } = this.#chunkRun;
    const { trace, memory, pricing, meter } = this.#parts;
    const { bytes, parsed, customId } = checked(line, read);
    const span = trace.startLine(line.number);
    const traceparent = trace.traceparentOf(span);
    const room = memory.open("answers", claimed.batch.project);
    const deadlineAtMs = claimed.batch.expiresAtMs;
    const sent = { bytes, parsed, traceparent, room, deadlineAtMs };
    const request = requestOf(sent, claimed.batch);
    const price = pricing.priceOf(request.model);
    const route = routeOf(request.model);
    const allowance = meter?.allowance(spendingOf(parsed, request, { route, price })) ?? null;
    return {
      lineNumber: line.number,
      customId,
      room,
      span,
      request: allowance === null ? request : { ...request, allowance },
      price,
      allowance,
      route,
    };
  }

  async #send(line: ReadyLine, slot: Slot | null): Promise<void> {
    const { request, route, room, span, allowance } = line;
    let isKept = false;
    const { clock } = this.#parts;
    const beganAtMs = clock.elapsedMs();
    try {
      if (route === null) this.unserved.add(request.model);
      const outcome = (await route?.send(request, this.#chunkRun.run, slot)) ?? INTERRUPTED;
      if (span !== NO_SPAN) span.end(endingOf(outcome));
      if (outcome.kind !== "interrupted") {
        isKept = true;
        await this.#record(line, outcome, clock.elapsedMs() - beganAtMs);
      }
    } catch (cause) {
      this.#fail(cause);
    } finally {
      if (!isKept) {
        room.release();
        allowance?.settle();
      }
      if (--this.#underWayCount === 0) this.#resolveSettled?.();
    }
  }

  /** Records the outcome. The journal has the room of the answer from then on. */
  #record(line: ReadyLine, outcome: FinalOutcome, latencyMs: number): Promise<void> | null {
    const { lineNumber, room, request, price, allowance } = line;
    const { commonFailures, journal, log } = this.#parts;
    const succeeded = isSuccess(outcome);
    commonFailures.note(this.#chunkRun.claimed.batch, outcome);
    const row = outcomeLine(line, outcome);
    const isPaid = succeeded && outcome.kind === "answered";
    const answer = isPaid
      ? { model: request.model, price, usage: outcome.usage, names: outcome.names }
      : null;
    if (answer !== null) allowance?.took(takenBy(answer.usage, price));
    const { lease } = this.#chunkRun.claimed;
    this.recordedCount++;
    this.#chunkRun.run.watch.lineAnswered();
    this.#chunkRun.onRecorded();
    const upstream_request_id = "requestId" in outcome ? outcome.requestId : null;
    const { batchId: batch, chunkNumber: chunk } = lease;
    const { kind } = outcome;
    log.debug({ batch, chunk, line: lineNumber, outcome: kind, upstream_request_id }, RECORDED);
    const failure = succeeded ? undefined : failureOf(outcome);
    const onDurable = allowance === null ? undefined : () => allowance.settle();
    const record = { lineNumber, succeeded, failure, row, room, answer, latencyMs, onDurable };
    this.#journalFull = journal.append(record);
    return this.#journalFull;
  }
}

/** Returns what a line may use. The operator of its route may allow longer answers than the line does. */
const spendingOf = (
  parsed: ParsedLine,
  { inputTokens, answerTokens }: UpstreamRequest,
  { route, price }: Pick<ReadyLine, "route" | "price">,
): Spending =>
  estimateOf({ inputTokens, answerTokens: route?.answerTokensOf(parsed) ?? answerTokens }, price);

const RECORDED = "line.recorded";

/** A line that can go out. */
interface ReadyLine {
  readonly lineNumber: number;
  readonly customId: Buffer;
  readonly room: Room;
  readonly span: Span;
  readonly request: UpstreamRequest;
  /**
   * The price of its answer, whenever that comes. At a price of then, lines under way would take more than was reserved for
   * them once a price is raised.
   */
  readonly price: Price | null;
  /** What the line may use, where that is bounded. */
  readonly allowance: LineAllowance | null;
  /** The current route; null when no target serves the model any more. */
  readonly route: Route | null;
}
