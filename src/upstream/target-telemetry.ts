/**
 * Writes the metrics and traces of the attempts at one target. It is on the hot path and must make no object without
 * traces.
 */
import { NO_USAGE } from "../batch/batch.ts";
import type { Answered, Outcome } from "../batch/outcome.ts";
import type { BatchEndpoint } from "../contract/batch.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import type { TargetMetrics } from "../telemetry/target-metrics.ts";
import {
  type Attributes,
  endingOf,
  NO_SPAN,
  type Span,
  type Tracing,
} from "../telemetry/tracing.ts";
import type { UpstreamRequest } from "./request.ts";
import type { TargetFigures, TargetStatus } from "./target-report.ts";

export interface TargetTelemetryOptions {
  readonly metrics: Metrics;
  readonly tracing: Tracing;
}

export class TargetTelemetry {
  readonly #name: string;
  readonly #metrics: TargetMetrics;
  readonly #tracing: Tracing;
  readonly #attempts = { answered: 0, rateLimited: 0, overloaded: 0, failed: 0 };

  constructor(name: string, { metrics, tracing }: TargetTelemetryOptions) {
    this.#name = name;
    this.#metrics = metrics.target(name);
    this.#tracing = tracing;
  }

  /** Reports the wait of a request for its slot. */
  waited(lane: keyof TargetStatus["inFlight"], ms: number): void {
    this.#metrics.waited(lane, ms);
  }

  startAttempt({ endpoint, model, traceparent: parent }: UpstreamRequest): Span {
    if (!this.#tracing.isOn) return NO_SPAN;
    const attributes = {
      "batchd.target": this.#name,
      "batchd.endpoint": endpoint,
      "gen_ai.operation.name": OPERATIONS[endpoint] ?? null,
      "gen_ai.request.model": model,
    };
    return this.#tracing.start("upstream.attempt", { parent, kind: "client", attributes });
  }

  /** What became of the attempts so far, and how long they took. */
  get figures(): Pick<TargetFigures, "attempts" | "durations"> {
    return { attempts: { ...this.#attempts }, durations: this.#metrics.durations };
  }

  endAttempt(span: Span, outcome: Outcome, ms: number): void {
    this.#metrics.attempted(outcome, ms);
    const kind = figureOf(outcome);
    if (kind !== null) this.#attempts[kind]++;
    if (span === NO_SPAN) return;
    const { attributes, ...ending } = endingOf(outcome);
    const usage = outcome.kind === "answered" ? usageOf(outcome) : {};
    span.end({ ...ending, attributes: { ...attributes, ...usage } });
  }

  /** Reports that the line is to go out again. */
  retried(outcome: Outcome): void {
    this.#metrics.retried(outcome);
  }
}

/** An interrupted attempt says nothing about its target. */
function figureOf(outcome: Outcome): keyof TargetFigures["attempts"] | null {
  switch (outcome.kind) {
    case "answered":
      return outcome.status < 500 ? "answered" : "failed";
    case "overloaded":
      return outcome.status === 429 ? "rateLimited" : "overloaded";
    case "interrupted":
      return null;
    default:
      return "failed";
  }
}

/** The operation names of the semantic conventions, where they have one. */
const OPERATIONS: Readonly<Partial<Record<BatchEndpoint, string>>> = {
  "/v1/chat/completions": "chat",
  "/v1/responses": "chat",
  "/v1/completions": "text_completion",
  "/v1/embeddings": "embeddings",
};

/** A proxied answer has no usage, because its body is not read here. */
const usageOf = ({ usage }: Answered): Attributes =>
  usage === NO_USAGE
    ? {}
    : {
        "gen_ai.usage.input_tokens": usage.inputTokens,
        "gen_ai.usage.output_tokens": usage.outputTokens,
      };
