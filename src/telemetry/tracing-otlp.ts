/**
 * Sends OpenTelemetry spans by OTLP over HTTP, as protobuf or as JSON. Only a configuration with tracing loads this
 * file, because the SDK costs memory and time at the start.
 *
 * No work may wait for the receiver. Spans gather in a bounded buffer that is sent every few seconds. While the
 * receiver is down, the buffer keeps the oldest spans and drops the newest, and the log says so once.
 */
import {
  type Link,
  type Span as OtelSpan,
  ROOT_CONTEXT,
  type SpanContext,
  SpanKind,
  SpanStatusCode,
  type Tracer,
  trace,
} from "@opentelemetry/api";
import { OTLPTraceExporter as JsonExporter } from "@opentelemetry/exporter-trace-otlp-http";
import { OTLPTraceExporter as ProtobufExporter } from "@opentelemetry/exporter-trace-otlp-proto";
import { resourceFromAttributes } from "@opentelemetry/resources";
import {
  BatchSpanProcessor,
  type ReadableSpan,
  type SpanExporter,
  TracerProvider,
} from "@opentelemetry/sdk-trace";
import { type Clock, within } from "../clock.ts";
import type { Redactor } from "../redactor.ts";
import { boundPieces } from "../resources/tiny-pieces.ts";
import { truncate } from "../text/truncate.ts";
import { version } from "../version.ts";
import type { Log } from "./log.ts";
import type { Attributes, Ending, Span, SpanName, SpanStart, Tracing } from "./tracing.ts";

const EXPORT_TIMEOUT_MS = 5_000;
/** The longest time for which a silent receiver can delay the end of the process. */
const CLOSE_WITHIN_MS = 2_000;
/** The size of the buffer: at most some tens of megabytes, while the receiver is down. */
const MAX_WAITING_SPANS = 16_384;
const MAX_SPANS_PER_EXPORT = 2_048;
const EXPORT_EVERY_MS = 2_000;
/** An answer that comes byte by byte is never over, and keeps its connection. */
const MAX_UNANSWERED_EXPORTS = 8;
const UNANSWERED = new Error(`the last ${MAX_UNANSWERED_EXPORTS} answers have not ended`);

export interface OtlpOptions {
  /** The address of the receiver, such as `http://localhost:4318/v1/traces`. */
  readonly endpoint: string;
  readonly protocol: "http/protobuf" | "http/json";
  readonly clock: Clock;
  readonly log: Log;
  readonly redactor: Redactor;
}

export function openOtlpTracing(options: OtlpOptions): Tracing {
  const { endpoint, protocol, clock, log, redactor } = options;
  boundPieces();
  const Exporter = protocol === "http/json" ? JsonExporter : ProtobufExporter;
  const exporter = new Exporter({ url: endpoint, timeoutMillis: EXPORT_TIMEOUT_MS });
  const processor = new BatchSpanProcessor({
    exporter: new LoggingExporter({ exporter, log, redactor }),
    maxQueueSize: MAX_WAITING_SPANS,
    maxExportBatchSize: MAX_SPANS_PER_EXPORT,
    scheduledDelayMillis: EXPORT_EVERY_MS,
    exportTimeoutMillis: EXPORT_TIMEOUT_MS,
  });
  const provider = new TracerProvider({
    resource: resourceFromAttributes({ "service.name": "batchd", "service.version": version }),
    spanProcessors: [processor],
  });
  const tracer = provider.getTracer("batchd", version);
  return {
    isOn: true,
    start: (name, start) => startSpan(tracer, name, start),
    close: () =>
      within(clock, CLOSE_WITHIN_MS, {
        work: provider.shutdown().catch(() => {}),
        late: undefined,
      }),
  };
}

function startSpan(tracer: Tracer, name: SpanName, start: SpanStart): Span {
  const { parent, kind, attributes, link = null } = start;
  const parentContext = parent === null ? null : contextOf(parent);
  const linked = link === null ? null : contextOf(link);
  const links: Link[] = linked === null ? [] : [{ context: linked }];
  const span = tracer.startSpan(
    name,
    { kind: kindOf(kind), attributes: known(attributes), links },
    parentContext === null ? ROOT_CONTEXT : trace.setSpanContext(ROOT_CONTEXT, parentContext),
  );
  return new OtlpSpan(span);
}

class OtlpSpan implements Span {
  readonly traceparent: string;
  readonly #span: OtelSpan;

  constructor(span: OtelSpan) {
    const { traceId, spanId, traceFlags } = span.spanContext();
    this.#span = span;
    this.traceparent = `00-${traceId}-${spanId}-${traceFlags.toString(16).padStart(2, "0")}`;
  }

  end({ attributes = {}, problem = null }: Ending = {}): void {
    this.#span.setAttributes(known(attributes));
    if (problem !== null) {
      this.#span.setAttribute("error.type", problem);
      this.#span.setStatus({ code: SpanStatusCode.ERROR });
    }
    this.#span.end();
  }
}

function kindOf(kind: SpanStart["kind"]): SpanKind {
  if (kind === "server") return SpanKind.SERVER;
  return kind === "client" ? SpanKind.CLIENT : SpanKind.INTERNAL;
}

/** Removes the attributes without a value. */
const known = (attributes: Attributes) =>
  Object.fromEntries(
    Object.entries(attributes).filter(
      (entry): entry is [string, string | number | boolean] => entry[1] !== null,
    ),
  );

/** Parses a `traceparent`, which was checked when it came in. */
function contextOf(traceparent: string): SpanContext {
  const [, traceId = "", spanId = "", flags = "00"] = traceparent.split("-");
  return { traceId, spanId, traceFlags: Number.parseInt(flags, 16), isRemote: true };
}

type Done = Parameters<SpanExporter["export"]>[1];
/** `ExportResultCode.FAILED`. */
const FAILED = 1;

interface LoggingOptions extends Pick<OtlpOptions, "log" | "redactor"> {
  readonly exporter: SpanExporter;
}

/** Logs when the receiver goes down, and when it is back, and keeps the connections to it few. */
export class LoggingExporter implements SpanExporter {
  readonly #exporter: SpanExporter;
  readonly #log: Log;
  readonly #redactor: Redactor;
  #isFailing = false;
  #unansweredCount = 0;

  constructor({ exporter, log, redactor }: LoggingOptions) {
    this.#exporter = exporter;
    this.#log = log;
    this.#redactor = redactor;
  }

  export(spans: ReadableSpan[], done: Done): void {
    if (this.#unansweredCount === MAX_UNANSWERED_EXPORTS) {
      this.#note(spans, UNANSWERED);
      done({ code: FAILED, error: UNANSWERED });
      return;
    }
    this.#unansweredCount++;
    this.#exporter.export(spans, (result) => {
      this.#unansweredCount--;
      this.#note(spans, result.error);
      done(result);
    });
  }

  #note(spans: readonly ReadableSpan[], error: Error | undefined): void {
    if (error === undefined && this.#isFailing) {
      this.#log.info("traces.sent_again");
    } else if (error !== undefined && !this.#isFailing) {
      this.#log.warn({ spans: spans.length, ...this.#causeOf(error) }, "traces.not_sent");
    }
    this.#isFailing = error !== undefined;
  }

  /** Describes a failure. The error itself holds the whole answer of the receiver, which may be a page of megabytes. */
  #causeOf(error: Error & { readonly code?: string | number; readonly data?: string }) {
    const { message, name, code, data = "" } = error;
    // The cut may lie within a secret, of which the log would then know only a part.
    const shown = (text: string) => truncate(this.#redactor.text(text));
    return { reason: shown(message || name), code, ...(data !== "" && { said: shown(data) }) };
  }

  forceFlush(): Promise<void> {
    return this.#exporter.forceFlush?.() ?? Promise.resolve();
  }

  shutdown(): Promise<void> {
    return this.#exporter.shutdown();
  }
}
