/** A receiver of traces: OTLP over HTTP, as protobuf or as JSON. */
import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import protobuf from "protobufjs";
import { closeServer } from "./model-http.ts";

export interface ReceivedSpan {
  readonly name: string;
  readonly traceId: string;
  readonly spanId: string;
  /** The parent; null for the first span of a trace. */
  readonly parentSpanId: string | null;
  readonly kind: number;
  readonly attributes: Readonly<Record<string, unknown>>;
  readonly hasFailed: boolean;
  readonly links: readonly string[];
}

export interface OtlpReceiver extends AsyncDisposable {
  /** The address for `tracing.endpoint`. */
  readonly endpoint: string;
  readonly spans: readonly ReceivedSpan[];
  /** The resource of the sending process. */
  readonly resource: Readonly<Record<string, unknown>>;
  /** The content types of all requests. */
  readonly contentTypes: ReadonlySet<string>;
  /** The number of requests, including refused ones. */
  readonly requestCount: number;
}

const FAILED = 2;

/** The part of opentelemetry/proto/collector/trace/v1 that {@link ReceivedSpan} needs. */
const ExportRequest = protobuf
  .parse(`
  syntax = "proto3";
  message ExportRequest { repeated ResourceSpans resource_spans = 1; }
  message ResourceSpans { Resource resource = 1; repeated ScopeSpans scope_spans = 2; }
  message Resource { repeated KeyValue attributes = 1; }
  message ScopeSpans { repeated Span spans = 2; }
  message Span {
    bytes trace_id = 1; bytes span_id = 2; bytes parent_span_id = 4; string name = 5; int32 kind = 6;
    repeated KeyValue attributes = 9; repeated Link links = 13; Status status = 15;
  }
  message Link { bytes trace_id = 1; bytes span_id = 2; }
  message Status { int32 code = 3; }
  message KeyValue { string key = 1; AnyValue value = 2; }
  message AnyValue {
    oneof value { string string_value = 1; bool bool_value = 2; int64 int_value = 3; double double_value = 4; }
  }
`)
  .root.lookupType("ExportRequest");

export async function startOtlpReceiver({ status = 200, page = "" } = {}): Promise<OtlpReceiver> {
  const spans: ReceivedSpan[] = [];
  let resource: Record<string, unknown> = {};
  const contentTypes = new Set<string>();
  let requestCount = 0;
  const server = createServer((request, response) => {
    void readExport(request).then((body) => {
      requestCount++;
      contentTypes.add(request.headers["content-type"] ?? "");
      if (status === 200 && request.url === "/v1/traces") {
        for (const each of body.resourceSpans) {
          resource = attributesOf(each.resource.attributes);
          spans.push(...each.scopeSpans.flatMap((scope) => scope.spans).map(spanFrom));
        }
      }
      const isJson = request.headers["content-type"] === "application/json";
      const contentType = isJson ? "application/json" : "application/x-protobuf";
      response.writeHead(status, { "content-type": contentType }).end(isJson ? "{}" : page);
    });
  });
  const { promise, resolve } = Promise.withResolvers<void>();
  server.listen(0, "127.0.0.1", resolve);
  await promise;
  return {
    endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1/traces`,
    spans,
    get resource() {
      return resource;
    },
    contentTypes,
    get requestCount() {
      return requestCount;
    },
    [Symbol.asyncDispose]: () => closeServer(server),
  };
}

type Attribute = { key: string; value: Record<string, unknown> };

interface WireSpan {
  name: string;
  traceId: string;
  spanId: string;
  parentSpanId?: string;
  kind: number;
  attributes: Attribute[];
  /** Protobuf leaves out zeros. */
  status?: { code: number };
  links?: { traceId: string; spanId: string }[];
}

interface Export {
  resourceSpans: {
    resource: { attributes: Attribute[] };
    scopeSpans: { spans: WireSpan[] }[];
  }[];
}

async function readExport(request: IncomingMessage): Promise<Export> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  const bytes = Buffer.concat(chunks);
  if (request.headers["content-type"] === "application/json") {
    return JSON.parse(bytes.toString()) as Export;
  }
  const decoded = ExportRequest.decode(bytes);
  const plain = ExportRequest.toObject(decoded, { longs: Number, bytes: Array, arrays: true });
  return withHexIds(plain) as Export;
}

/** Converts the ids of protobuf, which are bytes, to the hexadecimal digits of JSON. */
function withHexIds(value: unknown): unknown {
  if (Array.isArray(value) && value.length > 0 && value.every((each) => typeof each === "number")) {
    return Buffer.from(value).toString("hex");
  }
  if (Array.isArray(value)) return value.map(withHexIds);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, withHexIds(each)]));
}

const attributesOf = (attributes: readonly Attribute[]) =>
  Object.fromEntries(attributes.map(({ key, value }) => [key, Object.values(value)[0]]));

const spanFrom = (span: WireSpan): ReceivedSpan => ({
  name: span.name,
  traceId: span.traceId,
  spanId: span.spanId,
  parentSpanId: span.parentSpanId ?? null,
  kind: span.kind,
  attributes: attributesOf(span.attributes),
  hasFailed: span.status?.code === FAILED,
  links: (span.links ?? []).map(({ traceId, spanId }) => `${traceId}-${spanId}`),
});
