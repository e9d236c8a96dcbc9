/**
 * Logs how a target fails, for the operator.
 *
 * Each sort of failure is logged at most once in ten seconds, with a count, however many lines meet it. The first good
 * answer after that is logged as its end. The log must never show the content of lines.
 */
import type { Outcome, RefusalReason, Refused } from "../batch/outcome.ts";
import type { Clock } from "../clock.ts";
import type { Log, LogEvent } from "../telemetry/log.ts";
import { Repeats } from "../telemetry/repeats.ts";

/** What is logged of a failure, beside its target. */
interface FailureFields {
  readonly status?: number;
  readonly retry_after_ms?: number | null;
  readonly detail?: string;
  readonly reason?: string;
  readonly after_ms?: number;
}

/** The operator has to act on a refusal, so it is logged at once, and again while it lasts. */
const REFUSAL_LOG_EVERY_MS = 600_000;
/** A tenant who makes a healthy target refuse now and then must not fill the log with it. */
const REFUSAL_LOG_PAUSE_MS = 60_000;

/** The remedies that the operator is told, by what was refused. */
const REMEDIES: Readonly<Record<RefusalReason, string>> = {
  credentials:
    "check api_key and headers of this upstream; a changed file is loaded by itself, and SIGHUP tries again at once",
  quota:
    "add credit or raise the limits of the account at this upstream, then send SIGHUP to try again at once",
  address:
    "check base_url of this upstream (most end in /v1), and whether it has the endpoint of the batch; a changed file is loaded by itself, and SIGHUP tries again at once",
};

export class TargetLog {
  readonly #target: string;
  readonly #clock: Clock;
  readonly #log: Log;
  /** The times of the refusals, by their reasons. */
  readonly #loggedAtMs = new Map<string, number>();
  readonly #repeats: Repeats;
  #isFailureLogged = false;

  constructor(target: string, { clock, log }: { clock: Clock; log: Log }) {
    this.#target = target;
    this.#clock = clock;
    this.#log = log;
    this.#repeats = new Repeats(clock);
  }

  note(outcome: Outcome): void {
    switch (outcome.kind) {
      case "interrupted":
      case "refused":
        return;
      case "overloaded":
        this.#warn("upstream.overloaded", {
          status: outcome.status,
          retry_after_ms: outcome.retryAfterMs,
        });
        return;
      case "unreachable":
        this.#warn("upstream.unreachable", { detail: outcome.detail });
        return;
      case "timed_out":
        this.#warn("upstream.failed", { reason: "timed out", after_ms: outcome.afterMs });
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

  /** Notes an answer for which requests are held, also when a probe has had it again. */
  noteHeld({ reason, status, said }: Refused): void {
    const nowMs = this.#clock.elapsedMs();
    const loggedAtMs = this.#loggedAtMs.get(reason) ?? Number.NEGATIVE_INFINITY;
    if (nowMs - loggedAtMs < REFUSAL_LOG_EVERY_MS) return;
    this.#loggedAtMs.set(reason, nowMs);
    this.#isFailureLogged = true;
    const fields = { target: this.#target, reason, status, upstream_error: said };
    this.#log.error({ ...fields, todo: REMEDIES[reason] }, "upstream.refused");
  }

  /** Lets the next refusal be logged, however soon it comes. */
  forget(): void {
    for (const reason of Object.keys(REMEDIES)) this.#loggedAtMs.delete(reason);
  }

  #noteGood(): void {
    if (!this.#isFailureLogged) return;
    this.#isFailureLogged = false;
    const nowMs = this.#clock.elapsedMs();
    for (const reason of Object.keys(REMEDIES)) {
      const loggedAtMs = this.#loggedAtMs.get(reason) ?? nowMs;
      if (nowMs - loggedAtMs >= REFUSAL_LOG_PAUSE_MS) this.#loggedAtMs.delete(reason);
    }
    this.#log.info({ target: this.#target }, "upstream.recovered");
  }

  #warn(event: LogEvent<"warn">, fields: FailureFields): void {
    const count = this.#repeats.count(event);
    if (count === null) return;
    this.#isFailureLogged = true;
    this.#log.warn({ target: this.#target, ...fields, count }, event);
  }
}
