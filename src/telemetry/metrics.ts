/**
 * Counts and measures for Prometheus. Each server has a registry of its own, so that several servers can run in one
 * process.
 *
 * A scrape asks other parts for the values that they have ({@link Metrics.scrape}). All other values are counted where
 * they arise. Lines are counted in groups, when they become durable. The metrics of a target are in
 * `target-metrics.ts`.
 */
import {
  Counter,
  collectDefaultMetrics,
  Gauge,
  Histogram,
  type Metric,
  Registry,
} from "prom-client";
import type { Batch, Usage } from "../batch/batch.ts";
import type { BatchStatus } from "../contract/batch.ts";
import type { OpenWork } from "../store/batches.ts";
import type { TargetStatus } from "../upstream/target-report.ts";
import { version } from "../version.ts";
import { AttemptHistogram } from "./attempt-histogram.ts";
import { type LabelOf, METRICS, type NameOfType } from "./metric-table.ts";
import { textOf } from "./metric-text.ts";
import { TargetMetrics } from "./target-metrics.ts";

export interface Answered {
  readonly method: string;
  /** The pattern of the route instead of the path, because clients choose the path. */
  readonly route: string;
  readonly status: number;
  readonly ms: number;
}

export interface Flushed {
  readonly bytes: number;
  readonly completed: number;
  readonly failed: number;
  readonly usage: Usage;
}

/** The labels of lines that were made durable. */
export interface LineLabels {
  readonly model: string;
  readonly project: string;
}

export type LeaseChange = "claimed" | "released" | "closed" | "lost";

/** The values that only a scrape asks for. */
export interface Now {
  readonly targets: readonly TargetStatus[];
  /** The work in the store; null when the store cannot count it, `elsewhere` when another replica counts it. */
  readonly openWork: OpenWork | null | "elsewhere";
  /** The bytes in memory, by purpose. */
  readonly heldBytes: Readonly<Record<string, number>>;
  readonly nowMs: number;
}

/**
 * The most models of a project with a series of their own. With `*`, clients choose the names, so the number of series needs
 * a bound. It is one for each project, because one project must not use up the names of another.
 */
const MAX_MODELS = 100;
const MAX_MODEL_LENGTH = 128;

/** Gauges of the process with the names of counters. Each exists by type under another name. */
const MISNAMED_METRICS = [
  "nodejs_active_handles_total",
  "nodejs_active_requests_total",
  "nodejs_active_resources_total",
];

const METHODS: readonly string[] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
const CIRCUITS: readonly TargetStatus["circuit"][] = ["closed", "half_open", "open"];

/** Each look at the event loop wakes an idle process. Its delay shows in alerts from half a second on. */
const EVENT_LOOP_EVERY_MS = 50;

export class Metrics {
  readonly #registry = new Registry();
  readonly #targets = new Map<string, TargetMetrics>();
  /** The models with a series of their own, by project. */
  readonly #models = new Map<string, Set<string>>();
  /** The projects with series of their own. */
  readonly #projects = new Set<string>();
  readonly #httpRequests = this.#counter("batchd_http_requests_total");
  readonly #httpSeconds = this.#histogram("batchd_http_request_duration_seconds");
  readonly #memoryHeld = this.#gauge("batchd_memory_held_bytes");
  readonly #batchesCreated = this.#counter("batchd_batches_created_total");
  readonly #batchesEnded = this.#counter("batchd_batches_ended_total");
  readonly #batchesOpen = this.#gauge("batchd_batches_open");
  readonly #linesOpen = this.#gauge("batchd_lines_open");
  readonly #lines = this.#counter("batchd_lines_total");
  readonly #tokens = this.#counter("batchd_tokens_total");
  readonly #deadlineSlack = this.#gauge("batchd_deadline_slack_seconds");
  readonly #batchSlack = this.#histogram("batchd_batch_slack_seconds");
  readonly #attempts = this.#counter("batchd_upstream_attempts_total");
  readonly #attemptSeconds = this.#attemptHistogram("batchd_upstream_attempt_duration_seconds");
  readonly #waitSeconds = this.#attemptHistogram("batchd_upstream_wait_seconds");
  readonly #retries = this.#counter("batchd_upstream_retries_total");
  readonly #limit = this.#gauge("batchd_upstream_concurrency_limit");
  readonly #inFlight = this.#gauge("batchd_upstream_in_flight");
  readonly #waiting = this.#gauge("batchd_upstream_waiting");
  readonly #circuit = this.#gauge("batchd_upstream_circuit_state");
  readonly #leases = this.#counter("batchd_lease_changes_total");
  readonly #segments = this.#counter("batchd_journal_segments_total");
  readonly #segmentBytes = this.#counter("batchd_journal_bytes_total");
  readonly #writeFailures = this.#counter("batchd_journal_write_failures_total");
  readonly #s3Requests = this.#counter("batchd_s3_requests_total");
  readonly #statements = this.#counter("batchd_database_statements_total");
  readonly #deliveries = this.#counter("batchd_delivery_attempts_total");
  readonly #webhooks = this.#counter("batchd_webhook_attempts_total");
  readonly #reloads = this.#counter("batchd_config_reloads_total");

  constructor() {
    this.#gauge("batchd_build_info").set({ version }, 1);
    // The counters start at 0, because a rate would miss the first step of a counter that appears with it.
    for (const outcome of ["ok", "refused"]) this.#reloads.inc({ outcome }, 0);
  }

  /** Adds the metrics of the process: CPU, memory, garbage collection, event loop. */
  watchProcess(): void {
    collectDefaultMetrics({
      register: this.#registry,
      eventLoopMonitoringPrecision: EVENT_LOOP_EVERY_MS,
    });
    for (const name of MISNAMED_METRICS) this.#registry.removeSingleMetric(name);
  }

  answered({ method, route, status, ms }: Answered): void {
    const labels = { method: METHODS.includes(method) ? method : "other", route };
    this.#httpRequests.inc({ ...labels, status: String(status) });
    this.#httpSeconds.observe(labels, ms / 1000);
  }

  batchCreated({ project }: Pick<Batch, "project">): void {
    this.#projects.add(project);
    this.#batchesCreated.inc({ project });
  }

  /** `slackMs` is the time that the batch had left. */
  batchEnded({ project }: Pick<Batch, "project">, status: BatchStatus, slackMs: number): void {
    this.#projects.add(project);
    this.#batchesEnded.inc({ status, project });
    this.#batchSlack.observe({ status }, Math.max(0, slackMs / 1000));
  }

  /** Returns the metrics of a target. A target that is removed and added again keeps its metrics. */
  target(name: string): TargetMetrics {
    const known = this.#targets.get(name);
    if (known !== undefined) return known;
    const target = new TargetMetrics(name, {
      attempts: this.#attempts,
      seconds: this.#attemptSeconds,
      waitSeconds: this.#waitSeconds,
      retries: this.#retries,
    });
    this.#targets.set(name, target);
    return target;
  }

  leaseChanged(kind: "batch" | "chunk", change: LeaseChange): void {
    this.#leases.inc({ kind, change });
  }

  journalFlushed(
    { bytes, completed, failed, usage }: Flushed,
    { model, project }: LineLabels,
  ): void {
    this.#projects.add(project);
    const labels = { model: this.#modelLabel(model, project), project };
    this.#segments.inc();
    this.#segmentBytes.inc(bytes);
    this.#lines.inc({ outcome: "completed", ...labels }, completed);
    this.#lines.inc({ outcome: "failed", ...labels }, failed);
    this.#tokens.inc({ kind: "input", ...labels }, usage.inputTokens);
    this.#tokens.inc({ kind: "cached", ...labels }, usage.cachedTokens);
    this.#tokens.inc({ kind: "output", ...labels }, usage.outputTokens);
    this.#tokens.inc({ kind: "reasoning", ...labels }, usage.reasoningTokens);
  }

  #modelLabel(model: string, project: string): string {
    // Two names with halves of surrogate pairs would be one label in the text of a scrape, which has each series once.
    const label = model.toWellFormed();
    const labels = this.#models.get(project) ?? new Set();
    this.#models.set(project, labels);
    if (labels.has(label)) return label;
    if (labels.size === MAX_MODELS || label.length > MAX_MODEL_LENGTH) return "other";
    labels.add(label);
    return label;
  }

  /** Removes the series of projects that are deleted. Others come and go for as long as the process runs. */
  async forgetProjects(projects: readonly string[]): Promise<void> {
    const gone = new Set(projects.filter((name) => this.#projects.delete(name)));
    if (gone.size === 0) return;
    for (const name of gone) this.#models.delete(name);
    for (const counter of [this.#batchesCreated, this.#batchesEnded, this.#lines, this.#tokens]) {
      const { values } = await counter.get();
      for (const { labels } of values) {
        if (gone.has(String(labels.project))) counter.remove(labels);
      }
    }
  }

  journalWriteFailed(): void {
    this.#writeFailures.inc();
  }

  statementsSent(count: number): void {
    this.#statements.inc(count);
  }

  s3Requested(operation: string, outcome: string): void {
    this.#s3Requests.inc({ operation, outcome });
  }

  deliveryAttempted(location: string, outcome: "delivered" | "failed" | "given_up"): void {
    this.#deliveries.inc({ location, outcome });
  }

  webhookAttempted(webhook: string, outcome: "delivered" | "failed" | "given_up"): void {
    this.#webhooks.inc({ webhook, outcome });
  }

  configReloaded(outcome: "ok" | "refused"): void {
    this.#reloads.inc({ outcome });
  }

  /** Returns all metrics in the text format of Prometheus. */
  async scrape({ targets, openWork, heldBytes, nowMs }: Now): Promise<string> {
    for (const [purpose, bytes] of Object.entries(heldBytes)) {
      this.#memoryHeld.set({ purpose }, bytes);
    }
    for (const target of this.#targets.values()) target.report();
    this.#setTargets(targets);
    this.#setOpenWork(openWork, nowMs);
    return textOf(this.#registry);
  }

  get contentType(): string {
    return this.#registry.contentType;
  }

  #setTargets(targets: readonly TargetStatus[]): void {
    for (const gauge of [this.#limit, this.#inFlight, this.#waiting, this.#circuit]) gauge.reset();
    for (const { name: target, limit, inFlight, waiting, circuit } of targets) {
      this.#limit.set({ target }, limit);
      this.#inFlight.set({ target, lane: "batch" }, inFlight.batch);
      this.#inFlight.set({ target, lane: "interactive" }, inFlight.interactive);
      this.#waiting.set({ target }, waiting);
      for (const state of CIRCUITS) this.#circuit.set({ target, state }, state === circuit ? 1 : 0);
    }
  }

  #setOpenWork(work: Now["openWork"], nowMs: number): void {
    this.#batchesOpen.reset();
    if (work === "elsewhere") {
      this.#linesOpen.remove();
      this.#deadlineSlack.remove();
      return;
    }
    this.#linesOpen.set(work?.lineCount ?? Number.NaN);
    const firstAtMs =
      work === null ? Number.NaN : (work.firstExpiresAtMs ?? Number.POSITIVE_INFINITY);
    this.#deadlineSlack.set((firstAtMs - nowMs) / 1000);
    for (const [status, count] of Object.entries(work?.batchCounts ?? {})) {
      this.#batchesOpen.set({ status }, count);
    }
  }

  #counter<Name extends NameOfType<"counter">>(name: Name): Counter<LabelOf<Name>> {
    return new Counter({ name, ...this.#described(name) });
  }

  #gauge<Name extends NameOfType<"gauge">>(name: Name): Gauge<LabelOf<Name>> {
    return new Gauge({ name, ...this.#described(name) });
  }

  #attemptHistogram(name: NameOfType<"histogram">): AttemptHistogram {
    const { help, labels: labelNames, buckets } = METRICS[name];
    const histogram = new AttemptHistogram({ name, help, labelNames, buckets });
    // The object has every member that the registry calls.
    this.#registry.registerMetric(histogram as unknown as Metric);
    return histogram;
  }

  #histogram<Name extends NameOfType<"histogram">>(name: Name): Histogram<LabelOf<Name>> {
    return new Histogram({
      name,
      buckets: [...METRICS[name].buckets],
      ...this.#described(name),
    });
  }

  #described<Name extends keyof typeof METRICS>(name: Name) {
    const { help, labels } = METRICS[name];
    return { help, labelNames: [...labels] as LabelOf<Name>[], registers: [this.#registry] };
  }
}
