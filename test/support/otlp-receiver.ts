/** A receiver of traces: OTLP over HTTP, as JSON. */
import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";

export interface ReceivedSpan {
  readonly name: string;
  readonly traceId: string;
  readonly spanId: string;
  /** Null for the first of a trace. */
  readonly parentSpanId: string | null;
  readonly kind: number;
  readonly attributes: Readonly<Record<string, unknown>>;
  readonly hasFailed: boolean;
  readonly links: readonly string[];
}

export interface OtlpReceiver extends AsyncDisposable {
  /** For `tracing.endpoint`. */
  readonly endpoint: string;
  readonly spans: readonly ReceivedSpan[];
  /** Of the process that sends. */
  readonly resource: Readonly<Record<string, unknown>>;
  /** How many requests came, also those that were refused. */
  readonly requestCount: number;
}

const FAILED = 2;

export async function startOtlpReceiver({ status = 200 } = {}): Promise<OtlpReceiver> {
  const spans: ReceivedSpan[] = [];
  let resource: Record<string, unknown> = {};
  let requestCount = 0;
  const server = createServer((request, response) => {
    void readJson(request).then((body) => {
      requestCount++;
      if (status === 200 && request.url === "/v1/traces") {
        for (const each of body.resourceSpans) {
          resource = attributesOf(each.resource.attributes);
          spans.push(...each.scopeSpans.flatMap((scope) => scope.spans).map(spanFrom));
        }
      }
      response.writeHead(status, { "content-type": "application/json" }).end("{}");
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
    get requestCount() {
      return requestCount;
    },
    async [Symbol.asyncDispose]() {
      const closed = Promise.withResolvers<void>();
      server.close(() => closed.resolve());
      server.closeAllConnections();
      await closed.promise;
    },
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
  status: { code: number };
  links?: { traceId: string; spanId: string }[];
}

interface Export {
  resourceSpans: {
    resource: { attributes: Attribute[] };
    scopeSpans: { spans: WireSpan[] }[];
  }[];
}

async function readJson(request: IncomingMessage): Promise<Export> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return JSON.parse(Buffer.concat(chunks).toString()) as Export;
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
  hasFailed: span.status.code === FAILED,
  links: (span.links ?? []).map(({ traceId, spanId }) => `${traceId}-${spanId}`),
});
