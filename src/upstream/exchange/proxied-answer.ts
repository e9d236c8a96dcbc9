/**
 * One HTTP exchange that passes its answer on as it comes.
 *
 * It resolves once: when the final status and headers are there, or when it is clear that they will not come. From
 * then on the events of the body report the rest. The upstream is read only as fast as the body is: a slow reader
 * slows the upstream down, and its time must not count against the upstream.
 *
 * An answer that may be about the operator's own key or address (`refusal.ts`) is first read as far as it takes to
 * judge it. The client must not read such an answer.
 */
import { Readable } from "node:stream";
import { NO_USAGE } from "../../batch/batch.ts";
import { INTERRUPTED, type Outcome } from "../../batch/outcome.ts";
import type { Clock } from "../../clock.ts";
import type { RedactedStream, Redactor } from "../../redactor.ts";
import { Gathered } from "../../text/gathered.ts";
import type { AnswerEnd, AnswerHeaders, Proxied } from "../request.ts";
import { type Interruptible, offAbort, onAbort } from "./abort-listeners.ts";
import { header, isOverload, problemOfHead, refusalIn, retryAfterMs } from "./answer.ts";
import {
  ATTEMPT_ENDED,
  type Attempted,
  type Controller,
  NO_CONNECTION,
  timedOut,
} from "./attempt.ts";
import { failureOf, withoutSecrets } from "./failure.ts";
import { rateLimitHints } from "./rate-limits.ts";
import { isLargerThanLimit, isWorthJudging } from "./refusal.ts";
import { type Awaited, type Impatient, type Timeouts, TimeoutTimer } from "./timeout-timer.ts";

export type Unproxied = Extract<
  Outcome,
  { kind: "unreachable" | "broken" | "timed_out" | "interrupted" | "refused" }
>;

interface ProxiedAnswerOptions {
  readonly timeouts: Timeouts;
  readonly abort: AbortSignal;
  readonly clock: Clock;
  readonly redactor: Redactor;
  readonly resolve: (result: Proxied | Unproxied) => void;
  /** The callback for the end of the exchange. It is called once, when nothing more comes from the upstream. */
  readonly onOver: () => void;
}

/** The limit of the bytes that are judged. Error answers are short, and only the beginning of a longer one counts. */
const MAX_JUDGED_BYTES = 64 * 1024;
/** The limit of the bytes that are joined. */
const MAX_JOINED_BYTES = 64 * 1024;

interface Head {
  readonly status: number;
  readonly headers: AnswerHeaders;
}

/** An answer that is read before it goes on. */
interface Judged {
  readonly head: Head;
  readonly body: Gathered;
}

export class ProxiedAnswer implements Interruptible, Impatient {
  readonly #options: ProxiedAnswerOptions;
  readonly #timeout: TimeoutTimer;
  #isOver = false;
  /** The controller of the exchange; null until a connection takes the request. */
  #controller: Controller | null = null;
  #judged: Judged | null = null;
  readonly #redacted: RedactedStream;
  /** The pieces of one read. A server may send each byte as a chunk, and each piece takes some 300 bytes as an object. */
  readonly #joined = new Gathered();
  /** The body that the client reads; null until the answer goes on. */
  #body: Readable | null = null;
  #wasPaused = false;
  readonly #over = Promise.withResolvers<AnswerEnd>();

  constructor(options: ProxiedAnswerOptions) {
    this.#options = options;
    this.#redacted = options.redactor.stream();
    this.#timeout = new TimeoutTimer(options.timeouts, options.clock, this);
    onAbort(options.abort, this);
  }

  onRequestStart(controller: Controller): void {
    this.#controller = controller;
    if (this.#isOver) controller.abort(ATTEMPT_ENDED);
    else this.#timeout.await("first_byte");
  }

  onResponseStart(controller: Controller, status: number, headers: AnswerHeaders): void {
    // The final status is still to come.
    if (this.#isOver || status < 200) return;
    this.#timeout.await("more");
    const head = { status, headers };
    const problem = problemOfHead(head);
    if (problem !== null) {
      this.#fail({ kind: "broken", detail: problem });
      return;
    }
    const contentType = header(headers, "content-type");
    const length = header(headers, "content-length");
    const bodyBytes = length === null ? null : Number(length);
    if (isWorthJudging({ status, contentType, bodyBytes })) {
      this.#judged = { head, body: new Gathered() };
    } else this.#passOn(controller, head);
  }

  #passOn(controller: Controller, { status, headers }: Head, isTooLarge = false): void {
    this.#body = this.#openBody(controller);
    const { redactor, resolve } = this.#options;
    resolve({
      kind: "proxied",
      status,
      isTooLarge,
      headers: redactHeaders(headers, redactor),
      body: this.#body,
      over: this.#over.promise,
    });
  }

  #openBody(controller: Controller): Readable {
    const body = new Readable({
      read: () => {
        if (this.#isOver) return;
        this.#timeout.await("more");
        controller.resume();
      },
      destroy: (error, callback) => {
        if (!this.#isOver) {
          this.#release();
          controller.abort(ATTEMPT_ENDED);
        }
        callback(error);
      },
    });
    // The reader hears of the end. An error without a reader at the moment must not stop the process.
    return body.on("error", () => {});
  }

  onResponseData(controller: Controller, chunk: Buffer): void {
    if (this.#isOver) return;
    if (this.#judged === null) this.#join(controller, chunk);
    else this.#gather(controller, this.#judged, chunk);
  }

  #gather(controller: Controller, judged: Judged, chunk: Buffer): void {
    this.#timeout.await("more");
    judged.body.add(chunk);
    if (judged.body.length <= MAX_JUDGED_BYTES) return;
    const { head } = judged;
    const body = judged.body.take();
    if (this.#isRefused(head, body)) this.#controller?.abort(ATTEMPT_ENDED);
    else this.#passJudged(controller, head, body);
  }

  /** Returns whether the answer is a refusal, which the caller then gets instead of a body. */
  #isRefused(head: Head, body: Buffer): boolean {
    const { redactor } = this.#options;
    const refused = refusalIn({ ...head, body: redactor.bytes(body) }, redactor);
    if (refused === null) return false;
    this.#release();
    const { status } = head;
    this.#options.resolve({ kind: "refused", ...refused, status, requestId: null, body: null });
    return true;
  }

  #passJudged(controller: Controller, head: Head, body: Buffer): void {
    this.#judged = null;
    this.#passOn(controller, head, isLargerThanLimit({ status: head.status, body }));
    this.#join(controller, body);
  }

  #join(controller: Controller, chunk: Buffer): void {
    const isFirst = this.#joined.length === 0;
    this.#joined.add(chunk);
    if (this.#joined.length >= MAX_JOINED_BYTES) this.#pushJoined(controller);
    // The microtask runs once the bytes that have come are read.
    else if (isFirst) queueMicrotask(() => !this.#isOver && this.#pushJoined(controller));
  }

  #pushJoined(controller: Controller): void {
    if (this.#body === null || this.#joined.length === 0) return;
    const clean = this.#redacted.push(this.#joined.take());
    // An empty chunk would end the reader's turn.
    if (clean.length === 0 || this.#body.push(clean)) {
      this.#timeout.await("more");
    } else {
      controller.pause();
      this.#wasPaused = true;
      this.#timeout.await("reader");
    }
  }

  onResponseEnd(controller: Controller): void {
    if (this.#isOver) return;
    const judged = this.#judged;
    if (judged !== null) {
      const body = judged.body.take();
      if (this.#isRefused(judged.head, body)) return;
      this.#passJudged(controller, judged.head, body);
    }
    this.#pushJoined(controller);
    this.#release({ isWhole: true });
    const last = this.#redacted.end();
    if (last.length > 0) this.#body?.push(last);
    this.#body?.push(null);
  }

  onResponseError(_controller: Controller | null, error: Error): void {
    this.#fail(failureOf(error, { isSent: this.#controller !== null }));
  }

  expire(waitedFor: Awaited | "answer"): void {
    this.#fail(
      this.#controller === null ? NO_CONNECTION : timedOut(waitedFor, this.#options.timeouts),
    );
  }

  interrupt(): void {
    this.#fail(INTERRUPTED);
  }

  #fail(outcome: Unproxied): void {
    if (this.#isOver) return;
    if (this.#controller !== null) this.#pushJoined(this.#controller);
    this.#release();
    const outcomeForClient = withoutSecrets(outcome, this.#options.redactor);
    if (this.#body === null) this.#options.resolve(outcomeForClient);
    else this.#body.destroy(breakOff(outcomeForClient));
    this.#controller?.abort(ATTEMPT_ENDED);
  }

  #release({ isWhole } = { isWhole: false }): void {
    this.#isOver = true;
    this.#over.resolve({ isWhole, wasPaused: this.#wasPaused });
    this.#timeout.stop();
    offAbort(this.#options.abort, this);
    this.#options.onOver();
  }
}

function redactHeaders(headers: AnswerHeaders, redactor: Redactor): AnswerHeaders {
  const clean: Record<string, string | string[] | undefined> = {};
  for (const [name, value] of Object.entries(headers)) {
    clean[name] = Array.isArray(value)
      ? value.map((each) => redactor.text(each))
      : value && redactor.text(value);
  }
  return clean;
}

function breakOff(outcome: Unproxied): Error {
  switch (outcome.kind) {
    case "unreachable":
    case "broken":
    case "refused":
      return new Error(`the answer broke off: ${outcome.detail}`);
    case "timed_out":
      return new Error(`the answer was not complete within ${outcome.afterMs} ms`);
    case "interrupted":
      return ATTEMPT_ENDED;
  }
}

/** Returns what the head of an answer tells; the reader of the answer gets the rest. */
export function beginningOf(answer: Proxied | Unproxied, nowMs: number): Attempted {
  if (answer.kind !== "proxied") return { outcome: answer, hints: null };
  const { status, headers, isTooLarge } = answer;
  const known = { status, requestId: null, body: Buffer.alloc(0) };
  const outcome: Outcome =
    isOverload(status) && !isTooLarge
      ? { kind: "overloaded", ...known, retryAfterMs: retryAfterMs(headers, nowMs) }
      : { kind: "answered", ...known, usage: NO_USAGE };
  return { outcome, hints: rateLimitHints(headers) };
}
