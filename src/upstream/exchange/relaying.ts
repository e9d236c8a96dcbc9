/**
 * One HTTP exchange whose answer goes on as it comes.
 *
 * It resolves once: when the final status and headers are there, or when it is clear that they will not come. From
 * then on the body tells its own story by its events. The upstream is read as fast as the body is: a reader
 * that is slow slows the upstream down, and the time it takes is not held against the upstream.
 */
import { Readable } from "node:stream";
import type { Outcome } from "../../batch/outcome.ts";
import type { Relayed } from "../upstream.ts";
import { type Interruptible, unwatch, watch } from "../watch.ts";
import {
  ABANDONED,
  type AnswerHeaders,
  type Controller,
  NO_CONNECTION,
  timedOut,
} from "./attempt.ts";
import { failureOf, withoutSecrets } from "./failure.ts";
import { type Awaited, type Impatient, Stopwatch, type Timeouts } from "./stopwatch.ts";

export type Unrelayed = Extract<
  Outcome,
  { kind: "unreachable" | "broken" | "timed_out" | "interrupted" }
>;

interface RelayingOptions {
  readonly timeouts: Timeouts;
  readonly abort: AbortSignal;
  /** What no detail may show. */
  readonly secrets: readonly string[];
  readonly resolve: (relay: Relayed | Unrelayed) => void;
  /** Called once, when nothing more comes from the upstream. */
  readonly onOver: () => void;
}

export class Relaying implements Interruptible, Impatient {
  readonly #options: RelayingOptions;
  readonly #stopwatch: Stopwatch;
  #isOver = false;
  /** Null until a connection takes the request. */
  #controller: Controller | null = null;
  /** Null until the answer begins. */
  #body: Readable | null = null;

  constructor(options: RelayingOptions) {
    this.#options = options;
    this.#stopwatch = new Stopwatch(options.timeouts, this);
    watch(options.abort, this);
  }

  onRequestStart(controller: Controller): void {
    this.#controller = controller;
    if (this.#isOver) controller.abort(ABANDONED);
    else this.#stopwatch.await("first_byte");
  }

  onResponseStart(controller: Controller, status: number, headers: AnswerHeaders): void {
    // The final status is still to come.
    if (this.#isOver || status < 200) return;
    this.#stopwatch.await("more");
    this.#body = this.#openBody(controller);
    this.#options.resolve({ kind: "relayed", status, headers, body: this.#body });
  }

  #openBody(controller: Controller): Readable {
    const body = new Readable({
      read: () => {
        if (this.#isOver) return;
        this.#stopwatch.await("more");
        controller.resume();
      },
      destroy: (error, callback) => {
        if (!this.#isOver) {
          this.#leave();
          controller.abort(ABANDONED);
        }
        callback(error);
      },
    });
    // Whoever reads it hears of its end; that nobody does at the moment is no reason to stop the process.
    return body.on("error", () => {});
  }

  onResponseData(controller: Controller, chunk: Buffer): void {
    if (this.#isOver || this.#body === null) return;
    if (this.#body.push(chunk)) {
      this.#stopwatch.await("more");
    } else {
      controller.pause();
      this.#stopwatch.await("reader");
    }
  }

  onResponseEnd(): void {
    if (this.#isOver) return;
    this.#leave();
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
    this.#fail({ kind: "interrupted" });
  }

  #fail(outcome: Unrelayed): void {
    if (this.#isOver) return;
    this.#leave();
    const told = withoutSecrets(outcome, this.#options.secrets);
    if (this.#body === null) this.#options.resolve(told);
    else this.#body.destroy(breakOff(told));
    this.#controller?.abort(ABANDONED);
  }

  #leave(): void {
    this.#isOver = true;
    this.#stopwatch.stop();
    unwatch(this.#options.abort, this);
    this.#options.onOver();
  }
}

function breakOff(outcome: Unrelayed): Error {
  switch (outcome.kind) {
    case "unreachable":
    case "broken":
      return new Error(`the answer broke off: ${outcome.detail}`);
    case "timed_out":
      return new Error(`the answer was not complete within ${outcome.afterMs} ms`);
    case "interrupted":
      return ABANDONED;
  }
}
