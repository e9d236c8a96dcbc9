import { LOG_EVENTS } from "../src/telemetry/log-events.ts";
import { METRICS } from "../src/telemetry/metric-table.ts";
import { SPANS } from "../src/telemetry/tracing.ts";
import { code, table } from "./markdown.ts";

const metricTable = (): string =>
  table(
    ["Metric", "Type", "Labels", "Meaning"],
    Object.entries(METRICS).map(([name, { type, labels, help }]) => [
      code(name),
      type,
      labels.map(code).join(", "),
      help,
    ]),
  );

const spanTable = (): string =>
  table(
    ["Span", "Spans"],
    Object.entries(SPANS).map(([name, meaning]) => [code(name), meaning]),
  );

const eventTable = (): string =>
  table(
    ["Event", "Level", "Meaning"],
    Object.entries(LOG_EVENTS).flatMap(([level, events]) =>
      Object.entries(events).map(([event, meaning]) => [code(event), level, meaning]),
    ),
  );

/** Returns the page of all logs, metrics and traces, from the tables that the server itself uses. */
export const observabilityPage =
  (): string => `This page is generated from the code by \`npm run generate\`.

# Observability

batchd shows what it does in three ways: numbers for Prometheus, traces for OpenTelemetry, and a log of events. They never
contain text of a prompt, of an answer, or of a key.

## Metrics

\`GET /metrics\` answers in the text format of Prometheus. It asks for no key, as \`/health\` does not: keep it inside your
network, as it names all projects and what they use. No other spelling of the path leads to it, so a proxy can keep it out by its name. To scrape it:

\`\`\`yaml
scrape_configs:
  - job_name: batchd
    static_configs: [{ targets: ["127.0.0.1:8080"] }]
\`\`\`

${metricTable()}

Beside these there are the usual ones about the process, \`process_*\` and \`nodejs_*\`: CPU, memory, garbage collection,
the lag of the event loop. The mean and the percentiles of the lag are those of an interval of 50 ms, so an idle server has 0.05.

Targets, open batches, open lines and the deadline are looked up at each scrape. All other metrics are counted where they
happen, and start from zero with the process.

Only one of the servers on a database exports the open batches, the open lines and the deadline: the server that does the
housekeeping. Another one takes over within some seconds when it ends or dies. So \`sum\` and \`max\` over all servers give the
figure itself. All other metrics are those of one process.

Some questions, and how to ask them:

| Question | PromQL |
| --- | --- |
| How many lines a second? | \`sum(rate(batchd_lines_total[5m]))\` |
| Who uses how many tokens? | \`sum by (project, model) (rate(batchd_tokens_total[1h]))\` |
| How much of a target is used? | \`sum without (lane) (batchd_upstream_in_flight) / batchd_upstream_concurrency_limit\` |
| How slow is it? | \`histogram_quantile(0.95, sum by (target, le) (rate(batchd_upstream_attempt_duration_seconds_bucket[5m])))\` |
| How often does it refuse? | \`sum by (target) (rate(batchd_upstream_attempts_total{outcome="overloaded"}[5m]))\` |
| Which targets are cut off? | \`batchd_upstream_circuit_state{state="closed"} == 0\` |
| Will a window close too soon? | \`batchd_deadline_slack_seconds < 3600\` |
| Can answers not be kept? | \`increase(batchd_journal_write_failures_total[5m]) > 0\` |

## Traces

Name a receiver that takes OTLP over HTTP (an OpenTelemetry Collector, Jaeger, Tempo and others do):

\`\`\`yaml
tracing: { endpoint: http://localhost:4318/v1/traces }
\`\`\`

If the file has no \`tracing\`, \`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT\` counts, or \`OTEL_EXPORTER_OTLP_ENDPOINT\` with
\`/v1/traces\` added. Spans go as protobuf; \`protocol: http/json\`, or \`OTEL_EXPORTER_OTLP_TRACES_PROTOCOL\` and
\`OTEL_EXPORTER_OTLP_PROTOCOL\`, make it JSON. gRPC is not spoken. \`OTEL_EXPORTER_OTLP_HEADERS\` adds headers,
and \`OTEL_EXPORTER_OTLP_CERTIFICATE\` names a PEM file with an authority of one's own for the receiver.
Without an endpoint nothing of OpenTelemetry is even loaded.

${spanTable()}

- One trace goes from the upload of a file to the output of its batch, over restarts too: its id is kept with the file
  and with the batch.
- A client that sends \`traceparent\` sees the upload, the batch or the request as part of its own trace. A batch that
  joins its client's trace is linked to the upload of its input file.
- Upstreams get a \`traceparent\` with every attempt, so what they trace becomes part of it. Without an endpoint they get
  the \`traceparent\` of the client, as it came.
- A trace that its client does not sample is passed on and not sent.
- If the receiver is away, spans are dropped and the log says so once. Nothing else changes.
- Attributes follow the semantic conventions of OpenTelemetry where they have a name for it
  (\`gen_ai.request.model\`, \`gen_ai.usage.input_tokens\`, \`http.response.status_code\`, \`error.type\`); the others
  begin with \`batchd.\`.

## Log

One JSON object a line on standard error (in a terminal, a line for people instead): \`level\`, \`time\`, \`event\` and what belongs to it. \`log_level\` sets from which
level on. Names of fields are in snake case, and the same field means the same thing everywhere: \`batch\`, \`chunk\`, \`line\` (its number in the input file), \`file\`,
\`upload\`, \`target\`, \`request_id\` (the \`x-request-id\` that the client got), \`upstream_request_id\` (what the upstream calls
the exchange).

What lasts is not said again and again: while the database, the storage or an upstream is away, one line of a kind in ten seconds stands for
\`count\` of them. Requests and downloads are logged each.

${eventTable()}
`;
