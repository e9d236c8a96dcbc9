/**
 * One HTTP exchange that gathers the whole answer. The first ending (the answer, an error, the timer, an abort)
 * settles it; all later events must be ignored.
 *
 * This is the hot path: each attempt makes one object that undici calls back, one timer and one promise.
 */
import { beginsWithMark } from "../../batch/first-line.ts";
import { INTERRUPTED, type Outcome } from "../../batch/outcome.ts";
import { isLong } from "../../resources/time-slice.ts";
import { Gathered } from "../../text/gathered.ts";
import type { AnswerHeaders, AnswerRoom } from "../request.ts";
import { type Interruptible, offAbort, onAbort } from "./abort-listeners.ts";
import { type AnswerRules, outcomeOf, type ReadAnswer, readAnswer } from "./answer.ts";
import { failureOf, withoutSecrets } from "./failure.ts";
import { type RateLimitHints, rateLimitHints } from "./rate-limits.ts";
import { isReset } from "./resets.ts";
import { type Awaited, type Impatient, type Timeouts, TimeoutTimer } from "./timeout-timer.ts";

/** The outcome of an attempt, and the rate limits that the answer reports. */
export interface Attempted {
  readonly outcome: Outcome;
  readonly hints: RateLimitHints | null;
}

/** The part of undici's controller of a request that is needed here. */
export interface Controller {
  abort(reason: Error): void;
  pause(): void;
  resume(): void;
}

/** The rules shared by every attempt at a target. */
export interface AttemptRules extends AnswerRules {
  /** Returns the limit. It is read when an attempt begins. */
  readonly maxAnswerBytes: () => number;
}

interface AttemptOptions {
  readonly timeouts: Timeouts;
  readonly abort: AbortSignal;
  /** The memory for the answer; left out where the answer is short. */
  readonly room?: AnswerRoom | undefined;
  readonly resolve: (attempted: Attempted) => void;
}

const NOTHING = Buffer.alloc(0);
/** The first byte of a byte order mark. Most answers end the look at it here. */
const MARK_START = 0xef;
const MARK_BYTES = 3;

/** Some servers put the mark before their JSON. A parser may ignore it (RFC 8259, section 8.1), and those of clients do. */
const withoutMark = (body: Buffer): Buffer =>
  body[0] === MARK_START && beginsWithMark(body) ? body.subarray(MARK_BYTES) : body;

export const ATTEMPT_ENDED = new Error("the attempt has ended");

export class Attempt implements Interruptible, Impatient {
  readonly #rules: AttemptRules;
  readonly #maxAnswerBytes: number;
  readonly #options: AttemptOptions;
  readonly #timeout: TimeoutTimer;
  #isSettled = false;
  /** The controller of the exchange; null until a connection takes the request. */
  #controller: Controller | null = null;
  #status = 0;
  #headers: AnswerHeaders = {};
  /** The body so far; null until the answer begins. */
  #body: Gathered | null = null;

  constructor(rules: AttemptRules, options: AttemptOptions) {
    this.#rules = rules;
    this.#maxAnswerBytes = rules.maxAnswerBytes();
    this.#options = options;
    this.#timeout = new TimeoutTimer(options.timeouts, rules.clock, this);
    onAbort(options.abort, this);
  }

  onRequestStart(controller: Controller): void {
    this.#controller = controller;
    // The room belongs to the attempt before this one.
    this.#options.room?.release();
    // The attempt has ended while it waited for a connection.
    if (this.#isSettled) controller.abort(ATTEMPT_ENDED);
    else this.#timeout.await("first_byte");
  }

  /** Handles the head of an answer. Informational answers (1xx) come through here too; the final one comes last. */
  onResponseStart(_controller: Controller, status: number, headers: AnswerHeaders): void {
    this.#status = status;
    this.#headers = headers;
    if (status < 200) return;
    this.#body = new Gathered(announcedBytes(headers));
    this.#timeout.await("more");
  }

  onResponseData(controller: Controller, chunk: Buffer): void {
    const body = this.#body;
    if (this.#isSettled || body === null) return;
    this.#timeout.await("more");
    if (body.length + chunk.length <= this.#maxAnswerBytes) {
      body.add(chunk);
      const room = this.#options.room?.add(chunk.length) ?? null;
      if (room !== null) this.#pauseUntil(room, controller);
      return;
    }
    const detail = `an answer longer than ${this.#maxAnswerBytes} bytes`;
    this.#breakOff({ kind: "broken", detail });
  }

  /**
   * Pauses the answer. The server is not at fault for the lack of room, so only the time for the whole answer counts
   * meanwhile.
   */
  #pauseUntil(room: Promise<void>, controller: Controller): void {
    controller.pause();
    this.#timeout.await("reader");
    void room.then(() => {
      if (this.#isSettled) return;
      this.#timeout.await("more");
      controller.resume();
    });
  }

  onResponseEnd(): void {
    if (this.#isSettled) return;
    // The answer is complete, so no timeout may pass any more.
    this.#timeout.stop();
    const { redactor } = this.#rules;
    const raw = withoutMark(this.#body?.take() ?? NOTHING);
    const reading = readAnswer(isLong(raw) ? raw : redactor.bytes(raw), redactor);
    if (reading instanceof Promise) {
      void reading.then((read) => this.#settleAnswered(read, raw.length));
    } else this.#settleAnswered(reading, raw.length);
  }

  #settleAnswered({ body, facts }: ReadAnswer, cameBytes: number): void {
    if (this.#isSettled) return;
    // Escapes make an answer longer. It is whole, so there is nothing to wait for.
    if (body.length > cameBytes) void this.#options.room?.add(body.length - cameBytes);
    const headers = this.#headers;
    const answer = { status: this.#status, headers, body };
    this.#settle(outcomeOf(answer, facts, this.#rules), rateLimitHints(headers));
  }

  onResponseError(_controller: Controller | null, error: Error): void {
    if (this.#isSettled) return;
    // JSON shows itself whether it is whole. Servers that answer before they have read a request reset its connection.
    if (this.#body !== null && isReset(error) && endsWithConnection(this.#headers)) {
      this.onResponseEnd();
    } else this.#settle(failureOf(error, { isSent: this.#controller !== null }));
  }

  expire(waitedFor: Awaited | "answer"): void {
    this.#breakOff(
      this.#controller === null ? NO_CONNECTION : timedOut(waitedFor, this.#options.timeouts),
    );
  }

  interrupt(): void {
    this.#breakOff(INTERRUPTED);
  }

  /** Settles an attempt whose answer is not complete, and drops its connection, which is of no more use. */
  #breakOff(outcome: Outcome): void {
    if (this.#isSettled) return;
    this.#settle(outcome);
    this.#controller?.abort(ATTEMPT_ENDED);
  }

  #settle(outcome: Outcome, hints: RateLimitHints | null = null): void {
    this.#isSettled = true;
    // Such a result is short and may be kept for hours, until another attempt follows.
    if (outcome.kind !== "answered") this.#options.room?.release();
    this.#body = null;
    this.#timeout.stop();
    offAbort(this.#options.abort, this);
    this.#options.resolve({ outcome: withoutSecrets(outcome, this.#rules.redactor), hints });
  }
}

export const NO_CONNECTION = { kind: "unreachable", detail: "no connection in time" } as const;

/** Returns the outcome of a wait that was too long, once the request is out. */
export function timedOut(
  waitedFor: Awaited | "answer",
  { firstByteMs, idleMs, totalMs }: Timeouts,
): Extract<Outcome, { kind: "timed_out" }> {
  switch (waitedFor) {
    case "first_byte":
      return { kind: "timed_out", afterMs: firstByteMs, waitingFor: "first_byte" };
    case "more":
      return { kind: "timed_out", afterMs: idleMs, waitingFor: "more" };
    default:
      return { kind: "timed_out", afterMs: totalMs };
  }
}

const endsWithConnection = (headers: AnswerHeaders): boolean =>
  headers["content-length"] === undefined && headers["transfer-encoding"] === undefined;

function announcedBytes(headers: AnswerHeaders): number | null {
  const announced = headers["content-length"];
  return typeof announced === "string" ? Number(announced) : null;
}
