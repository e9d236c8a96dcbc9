/**
 * Every metric of batchd with its name, description and labels. The page about metrics is generated from this table.
 */

interface Definition {
  readonly type: "counter" | "gauge" | "histogram";
  readonly help: string;
  readonly labels: readonly string[];
  /** The upper bounds of a histogram. */
  readonly buckets?: readonly number[];
}

const MINUTE = 60;
const HOUR = 60 * MINUTE;

/** The bounds for attempts. Models take from milliseconds, for an embedding, to minutes. */
const ATTEMPT_SECONDS = [
  0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600,
];
/** The bounds for requests. A large upload may take minutes. */
const REQUEST_SECONDS = [
  0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300,
];
/** The bounds for the time that a batch had left. The first bucket holds the late batches. */
const SLACK_SECONDS = [
  0,
  MINUTE,
  10 * MINUTE,
  HOUR,
  2 * HOUR,
  4 * HOUR,
  8 * HOUR,
  12 * HOUR,
  16 * HOUR,
  20 * HOUR,
  22 * HOUR,
  23 * HOUR,
];

export const METRICS = {
  batchd_build_info: {
    type: "gauge",
    help: "Always 1; the label says which version runs.",
    labels: ["version"],
  },

  batchd_http_requests_total: {
    type: "counter",
    help: "Requests to batchd, by the route that took them; `other` where there is none.",
    labels: ["method", "route", "status"],
  },
  batchd_http_request_duration_seconds: {
    type: "histogram",
    help: "From the head of a request to the end of its answer.",
    labels: ["method", "route"],
    buckets: REQUEST_SECONDS,
  },

  batchd_memory_held_bytes: {
    type: "gauge",
    help: "Bodies and answers in memory, of `limits.memory_bytes`: `requests` of clients, `lines` of batches, and `answers` to them.",
    labels: ["purpose"],
  },

  batchd_batches_created_total: {
    type: "counter",
    help: "Batches created.",
    labels: ["project"],
  },
  batchd_batches_ended_total: {
    type: "counter",
    help: "Batches that reached their final status.",
    labels: ["status", "project"],
  },
  batchd_batches_open: {
    type: "gauge",
    help: "Batches that are not final. Only one of the servers on a database exports it.",
    labels: ["status"],
  },
  batchd_lines_open: {
    type: "gauge",
    help: "Lines of open batches without an answer in the journal: the depth of the queue. Paused batches and lines that `dedupe` does not send are left out. A batch counts once it is validated. Only one of the servers on a database exports it.",
    labels: [],
  },
  batchd_lines_total: {
    type: "counter",
    help: "Lines whose answer is in the journal; `failed` are those of the error file. `model` is what the batch asked for; after the first 100 models of a project it is `other`.",
    labels: ["outcome", "model", "project"],
  },
  batchd_tokens_total: {
    type: "counter",
    help: "Tokens of completed lines, as the upstreams count them; `cached` are part of `input`, `reasoning` of `output`.",
    labels: ["kind", "model", "project"],
  },
  batchd_deadline_slack_seconds: {
    type: "gauge",
    help: "Time left to the open batch whose window ends first; +Inf when no batch is open. Only one of the servers on a database exports it.",
    labels: [],
  },
  batchd_batch_slack_seconds: {
    type: "histogram",
    help: "Time that batches had left when they ended; none, for those that expired.",
    labels: ["status"],
    buckets: SLACK_SECONDS,
  },

  batchd_upstream_attempts_total: {
    type: "counter",
    help: "Exchanges with a target, by what became of them. `status` is the class of the answer, or `none`.",
    labels: ["target", "outcome", "status"],
  },
  batchd_upstream_attempt_duration_seconds: {
    type: "histogram",
    help: "From sending a request to the end of its answer, or to what came instead.",
    labels: ["target"],
    buckets: ATTEMPT_SECONDS,
  },
  batchd_upstream_wait_seconds: {
    type: "histogram",
    help: "From wanting a target to having a slot of it; `lane` is `batch` or `interactive`.",
    labels: ["target", "lane"],
    buckets: ATTEMPT_SECONDS,
  },
  batchd_upstream_retries_total: {
    type: "counter",
    help: "Attempts after which a line was to go out again, by what became of them.",
    labels: ["target", "reason"],
  },
  batchd_upstream_concurrency_limit: {
    type: "gauge",
    help: "Requests in flight that the target may have now.",
    labels: ["target"],
  },
  batchd_upstream_in_flight: {
    type: "gauge",
    help: "Requests in flight; `lane` is `batch` or `interactive`.",
    labels: ["target", "lane"],
  },
  batchd_upstream_waiting: {
    type: "gauge",
    help: "Requests that wait for a slot of the target. A request that may go to several targets counts at each of them.",
    labels: ["target"],
  },
  batchd_upstream_circuit_state: {
    type: "gauge",
    help: "1 for the state that the circuit breaker of the target is in, 0 for the others.",
    labels: ["target", "state"],
  },

  batchd_lease_changes_total: {
    type: "counter",
    help: "Leases on batches and chunks: `claimed`, then `closed` with the work done, `released` with some left, or `lost`.",
    labels: ["kind", "change"],
  },
  batchd_journal_segments_total: {
    type: "counter",
    help: "Groups of answers that were made durable together.",
    labels: [],
  },
  batchd_journal_bytes_total: {
    type: "counter",
    help: "Bytes of those groups.",
    labels: [],
  },
  batchd_journal_write_failures_total: {
    type: "counter",
    help: "Writes of the journal that failed, and were tried again.",
    labels: [],
  },
  batchd_database_statements_total: {
    type: "counter",
    help: "Statements sent to PostgreSQL, those that begin and end transactions included. It stays at 0 on SQLite.",
    labels: [],
  },
  batchd_s3_requests_total: {
    type: "counter",
    help: "Requests to the bucket, repeated ones included. `outcome` is `ok`, `missing` (404), `throttled` (503 or 429), `refused` (another 4xx) or `failed` (no answer, or a fault of the service).",
    labels: ["operation", "outcome"],
  },

  batchd_delivery_attempts_total: {
    type: "counter",
    help: "Attempts to deliver results to a location; buckets of clients are `client_bucket`. `outcome` is `delivered`, `failed` (and tried again) or `given_up`.",
    labels: ["location", "outcome"],
  },
  batchd_webhook_attempts_total: {
    type: "counter",
    help: "Attempts to send an event to a webhook; `outcome` is `delivered`, `failed` (and tried again) or `given_up`.",
    labels: ["webhook", "outcome"],
  },
  batchd_config_reloads_total: {
    type: "counter",
    help: "Changes of the configuration that were taken (`ok`) or `refused`.",
    labels: ["outcome"],
  },
} as const satisfies Readonly<Record<`batchd_${string}`, Definition>>;

export type MetricName = keyof typeof METRICS;
export type LabelOf<Name extends MetricName> = (typeof METRICS)[Name]["labels"][number];
export type NameOfType<Type extends Definition["type"]> = {
  [Name in MetricName]: (typeof METRICS)[Name]["type"] extends Type ? Name : never;
}[MetricName];
