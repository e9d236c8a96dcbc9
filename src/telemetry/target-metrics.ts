/** The metrics of one target. An attempt must not cost more than three calls with resolved labels. */
import type { Counter } from "prom-client";
import type { Outcome } from "../batch/outcome.ts";
import type { TargetStatus } from "../upstream/target-report.ts";
import type { AttemptHistogram, Observations } from "./attempt-histogram.ts";
import type { LabelOf } from "./metric-table.ts";

/** The metrics of all targets. */
interface TargetFamilies {
  readonly attempts: Counter<LabelOf<"batchd_upstream_attempts_total">>;
  readonly seconds: AttemptHistogram;
  readonly waitSeconds: AttemptHistogram;
  readonly retries: Counter<LabelOf<"batchd_upstream_retries_total">>;
}

/** Attempts of one kind. prom-client takes a microsecond for each addition, so they are added at a scrape. */
interface AttemptCount {
  readonly counter: Counter.Internal;
  unreported: number;
}

/** The metrics of one target, fast enough for tens of thousands of attempts a second. */
export class TargetMetrics {
  readonly #name: string;
  readonly #families: TargetFamilies;
  readonly #seconds: Observations;
  readonly #waitSeconds: Readonly<Record<keyof TargetStatus["inFlight"], Observations>>;
  /** The counters by outcome, then by the first digit of the status. */
  readonly #counts = new Map<Outcome["kind"], AttemptCount[]>();

  constructor(name: string, families: TargetFamilies) {
    const { seconds, waitSeconds } = families;
    this.#name = name;
    this.#families = families;
    this.#seconds = seconds.labels(name);
    this.#waitSeconds = {
      batch: waitSeconds.labels(name, "batch"),
      interactive: waitSeconds.labels(name, "interactive"),
    };
  }

  /** How long attempts took. */
  get durations(): Observations["buckets"] {
    return this.#seconds.buckets;
  }

  waited(lane: keyof TargetStatus["inFlight"], ms: number): void {
    this.#waitSeconds[lane].observe(ms / 1000);
  }

  attempted(outcome: Outcome, ms: number): void {
    this.#seconds.observe(ms / 1000);
    const statusClass = "status" in outcome ? Math.floor(outcome.status / 100) : 0;
    const known = this.#counts.get(outcome.kind)?.[statusClass];
    const count = known ?? this.#firstOf(outcome.kind, statusClass);
    count.unreported++;
  }

  /** Brings the counters up to date. */
  report(): void {
    for (const count of [...this.#counts.values()].flat()) {
      count.counter.inc(count.unreported);
      count.unreported = 0;
    }
  }

  retried({ kind }: Outcome): void {
    const reason = kind === "answered" ? "server_error" : kind;
    this.#families.retries.inc({ target: this.#name, reason });
  }

  #firstOf(kind: Outcome["kind"], statusClass: number): AttemptCount {
    const status = statusClass === 0 ? "none" : `${statusClass}xx`;
    const counter = this.#families.attempts.labels(this.#name, kind, status);
    const count = { counter, unreported: 0 };
    const counts = this.#counts.get(kind) ?? [];
    counts[statusClass] = count;
    this.#counts.set(kind, counts);
    return count;
  }
}
