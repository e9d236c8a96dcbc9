/**
 * How a target is doing, as its outcomes tell: whether to prefer another one for now, and what to log.
 *
 * A target in trouble is said so at most once in ten seconds, with a count, however many lines meet the
 * trouble; the first good answer after that says that it is over.
 */
import type { Outcome, RefusalReason, Refused } from "../batch/outcome.ts";
import type { Clock } from "../clock.ts";
import type { Log, LogEvent } from "../telemetry/log.ts";
import { backoffMs, DEFAULT_RETRY_POLICY } from "./retry.ts";

const LOG_EVERY_MS = 10_000;
/** A target that refuses us is a matter for the operator: said at once, and again while it lasts. */
const REFUSAL_LOG_EVERY_MS = 600_000;
/** A tenant who makes a healthy target refuse now and then is not to fill the log with it. */
const REFUSAL_LOG_PAUSE_MS = 60_000;

/** Fewer may be bad luck. */
const FAILURES_IN_A_ROW = 3;

const isGatewayError = (status: number) => status === 502 || status === 504;

/** What the operator has to do, by what was refused. */
const REMEDIES: Readonly<Record<RefusalReason, string>> = {
  credentials:
    "check api_key and headers of this upstream; a changed file is loaded by itself, and SIGHUP tries again at once",
  quota:
    "add credit or raise the limits of the account at this upstream, then send SIGHUP to try again at once",
  address:
    "check base_url of this upstream (most end in /v1); a changed file is loaded by itself, and SIGHUP tries again at once",
};

export class TargetHealth {
  readonly #target: string;
  readonly #clock: Clock;
  readonly #log: Log;
  #restUntilMs = 0;
  /** Rests in a row, without a good answer between them. */
  #restCount = 0;
  readonly #loggedAtMs = new Map<string, number>();
  readonly #unloggedCounts = new Map<string, number>();
  #isTroubleLogged = false;
  /** In a row, without a good answer between them. */
  #failureCount = 0;
  #lastFailure: Outcome | null = null;

  constructor(target: string, { clock, log }: { clock: Clock; log: Log }) {
    this.#target = target;
    this.#clock = clock;
    this.#log = log;
  }

  /** Whether lines that have a choice should go elsewhere. */
  get isResting(): boolean {
    return this.#clock.elapsedMs() < this.#restUntilMs;
  }

  /** The latest of several failures in a row; null while it answers, or fails now and then only. */
  get failure(): Outcome | null {
    return this.#failureCount >= FAILURES_IN_A_ROW ? this.#lastFailure : null;
  }

  /** The latest failure, whatever came after it. */
  get lastFailure(): Outcome | null {
    return this.#lastFailure;
  }

  note(outcome: Outcome): void {
    this.#count(outcome);
    switch (outcome.kind) {
      case "interrupted":
        return;
      case "refused":
        return;
      case "overloaded":
        this.#rest();
        this.#warn("upstream.overloaded", {
          status: outcome.status,
          retryAfterMs: outcome.retryAfterMs,
        });
        return;
      case "unreachable":
        this.#rest();
        this.#warn("upstream.unreachable", { detail: outcome.detail });
        return;
      case "timed_out":
        this.#warn("upstream.failed", { reason: "timed out", afterMs: outcome.afterMs });
        return;
      case "broken":
        // Its detail may quote an answer, and no content of lines belongs in a log.
        this.#warn("upstream.failed", { reason: "no usable answer" });
        return;
      case "answered":
        if (outcome.status >= 500) this.#warn("upstream.failed", { status: outcome.status });
        else this.#noteGood();
    }
  }

  /** Requests are held because of this answer, or a probe has met it again. */
  noteHeld({ reason, status, said }: Refused): void {
    const nowMs = this.#clock.elapsedMs();
    const loggedAtMs = this.#loggedAtMs.get(reason) ?? Number.NEGATIVE_INFINITY;
    if (nowMs - loggedAtMs < REFUSAL_LOG_EVERY_MS) return;
    this.#loggedAtMs.set(reason, nowMs);
    this.#isTroubleLogged = true;
    const fields = { target: this.#target, reason, status, upstreamError: said };
    this.#log.error({ ...fields, todo: REMEDIES[reason] }, "upstream.refused");
  }

  /** Whatever is wrong from now on is news. */
  forget(): void {
    for (const reason of Object.keys(REMEDIES)) this.#loggedAtMs.delete(reason);
  }

  #count(outcome: Outcome): void {
    if (outcome.kind === "interrupted" || outcome.kind === "refused") return;
    if (outcome.kind === "answered" && !isGatewayError(outcome.status)) {
      this.#failureCount = 0;
      return;
    }
    this.#failureCount++;
    this.#lastFailure = outcome;
  }

  #noteGood(): void {
    this.#restCount = 0;
    if (!this.#isTroubleLogged) return;
    this.#isTroubleLogged = false;
    const nowMs = this.#clock.elapsedMs();
    for (const reason of Object.keys(REMEDIES)) {
      const loggedAtMs = this.#loggedAtMs.get(reason) ?? nowMs;
      if (nowMs - loggedAtMs >= REFUSAL_LOG_PAUSE_MS) this.#loggedAtMs.delete(reason);
    }
    this.#log.info({ target: this.#target }, "upstream.recovered");
  }

  /** Requests that were in flight together fail together: they are one rest. */
  #rest(): void {
    const nowMs = this.#clock.elapsedMs();
    if (nowMs >= this.#restUntilMs) this.#restCount++;
    const restMs = backoffMs(this.#restCount - 1, DEFAULT_RETRY_POLICY);
    this.#restUntilMs = Math.max(this.#restUntilMs, nowMs + restMs);
  }

  #warn(event: LogEvent<"warn">, fields: Record<string, unknown>): void {
    const nowMs = this.#clock.elapsedMs();
    const count = (this.#unloggedCounts.get(event) ?? 0) + 1;
    const loggedAtMs = this.#loggedAtMs.get(event) ?? Number.NEGATIVE_INFINITY;
    if (nowMs - loggedAtMs < LOG_EVERY_MS) {
      this.#unloggedCounts.set(event, count);
      return;
    }
    this.#unloggedCounts.delete(event);
    this.#loggedAtMs.set(event, nowMs);
    this.#isTroubleLogged = true;
    this.#log.warn({ target: this.#target, ...fields, count }, event);
  }
}
