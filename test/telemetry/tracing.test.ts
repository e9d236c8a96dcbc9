import { createServer } from "node:net";
import { expect, test } from "vitest";
import { Interactive } from "../../src/api/interactive.ts";
import { systemClock } from "../../src/clock.ts";
import { UNLIMITED } from "../../src/config/projects.ts";
import { Redactor } from "../../src/redactor.ts";
import { createLog } from "../../src/telemetry/log.ts";
import { type Ending, NO_TRACING, traceparentFrom } from "../../src/telemetry/tracing.ts";
import { LoggingExporter } from "../../src/telemetry/tracing-otlp.ts";
import { createBatch } from "../support/batches.ts";
import { derive } from "../support/derived.ts";
import { listening } from "../support/listening.ts";
import {
  type OtlpReceiver,
  type ReceivedSpan,
  startOtlpReceiver,
} from "../support/otlp-receiver.ts";
import { chatLine, chatLines, startTestService, type TestService } from "../support/service.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

const TRACE = "0af7651916cd43dd8448eb211c80319c";
const SPAN = "b7ad6b7169203331";
const CLIENTS = `00-${TRACE}-${SPAN}-01`;

async function serviceFor(upstream: TestUpstream, receiver: OtlpReceiver | null) {
  const tracing = receiver === null ? {} : { tracing: { endpoint: receiver.endpoint } };
  return startTestService({ upstreamUrl: upstream.url, config: tracing });
}

const named = ({ spans }: OtlpReceiver, name: string) => spans.filter((span) => span.name === name);

function only(receiver: OtlpReceiver, name: string): ReceivedSpan {
  const spans = named(receiver, name);
  expect(spans.map((span) => span.name)).toEqual([name]);
  return spans[0] as ReceivedSpan;
}

async function createWith(service: TestService, fileId: string, traceparent: string) {
  return createBatch(service.openai, fileId, {}, { headers: { traceparent } });
}

test("one trace goes from the upload to the output, through every attempt at every line", async () => {
  await using upstream = await startUpstream();
  await using receiver = await startOtlpReceiver();
  await using service = await serviceFor(upstream, receiver);
  const lines = [chatLine("good", "Hello"), chatLine("again", "[[status 500 x1]]")];
  const batch = await service.run([...lines, chatLine("bad", "[[status 404]]")]);
  await service.close();

  const upload = only(receiver, "file.upload");
  const create = only(receiver, "batch.create");
  const chunk = only(receiver, "chunk.run");
  const sends = named(receiver, "line.send");
  const attempts = named(receiver, "upstream.attempt");
  expect(new Set(receiver.spans.map(({ traceId }) => traceId)).size).toBe(1);
  expect(upload.parentSpanId).toBeNull();
  expect(create.parentSpanId).toBe(upload.spanId);
  for (const name of ["batch.validate", "chunk.run", "batch.finalize"]) {
    expect(only(receiver, name).parentSpanId).toBe(create.spanId);
  }
  expect(sends.map(({ parentSpanId }) => parentSpanId)).toEqual(Array(3).fill(chunk.spanId));
  const perLine = sends.map(({ spanId }) => attempts.filter((one) => one.parentSpanId === spanId));
  expect(perLine.map(({ length }) => length).sort()).toEqual([1, 1, 2]);
  const wire = upstream.seen.map(({ headers }) => headers["traceparent"]);
  expect(new Set(wire)).toEqual(
    new Set(attempts.map(({ traceId, spanId }) => `00-${traceId}-${spanId}-01`)),
  );

  const ofBatch = { "batchd.batch.id": batch.id };
  expect(upload.attributes).toMatchObject({ "batchd.file.id": batch.input_file_id });
  expect(create.attributes).toMatchObject({ ...ofBatch, "batchd.file.id": batch.input_file_id });
  expect(only(receiver, "batch.validate").attributes).toMatchObject({ "batchd.batch.lines": 3 });
  expect(chunk.attributes).toMatchObject({ ...ofBatch, "batchd.chunk.unanswered": 0 });
  const numbers = sends.map(({ attributes }) => attributes["batchd.line.number"]);
  expect(new Set(numbers)).toEqual(new Set([1, 2, 3]));
  const failed = sends.find(({ hasFailed }) => hasFailed);
  expect(failed?.attributes).toMatchObject({ ...ofBatch, "http.response.status_code": 404 });
  const answered = attempts.find(({ hasFailed }) => !hasFailed);
  expect(answered?.attributes).toMatchObject({
    "batchd.target": "test",
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "test-model",
    "http.response.status_code": 200,
    "gen_ai.usage.input_tokens": expect.any(Number),
    "gen_ai.usage.output_tokens": expect.any(Number),
  });
  expect(only(receiver, "batch.finalize").attributes).toMatchObject({
    "batchd.batch.status": "completed",
    "batchd.output_file.id": batch.output_file_id,
    "batchd.error_file.id": batch.error_file_id,
  });
  expect(receiver.resource["service.name"]).toBe("batchd");
});

test("spans go as protobuf, or as JSON where the configuration says so", async () => {
  await using upstream = await startUpstream();
  for (const [config, contentType] of [
    [{}, "application/x-protobuf"],
    [{ protocol: "http/json" }, "application/json"],
  ] as const) {
    await using receiver = await startOtlpReceiver();
    const tracing = { endpoint: receiver.endpoint, ...config };
    await using service = await startTestService({
      upstreamUrl: upstream.url,
      config: { tracing },
    });
    await service.run(chatLines(1));
    await service.close();
    expect(receiver.contentTypes).toEqual(new Set([contentType]));
    expect(only(receiver, "chunk.run").attributes).toMatchObject({ "batchd.chunk.unanswered": 0 });
  }
});

test("a batch goes on with its client's trace and is linked to the trace of its file", async () => {
  await using upstream = await startUpstream();
  await using receiver = await startOtlpReceiver();
  await using service = await serviceFor(upstream, receiver);
  const fileId = await service.upload(chatLines(1));
  const { id } = await createWith(service, fileId, CLIENTS);
  await service.ended(id);
  await service.close();

  const upload = only(receiver, "file.upload");
  const create = only(receiver, "batch.create");
  expect([create.traceId, create.parentSpanId]).toEqual([TRACE, SPAN]);
  expect(create.links).toEqual([`${upload.traceId}-${upload.spanId}`]);
  expect(only(receiver, "upstream.attempt").traceId).toBe(TRACE);
  expect(only(receiver, "batch.finalize").traceId).toBe(TRACE);
});

test("a batch of lines of another one goes on with the trace of that batch", async () => {
  await using upstream = await startUpstream();
  await using receiver = await startOtlpReceiver();
  await using service = await serviceFor(upstream, receiver);
  const source = await service.run(chatLines(1));
  const { batch } = await derive(service, { batch: source.id, lines: "all" });
  await service.ended(batch.id);
  await service.close();

  const traces = named(receiver, "batch.create").map(({ traceId }) => traceId);
  expect(traces).toEqual([only(receiver, "file.upload").traceId, traces[0]]);
  expect(only(receiver, "batch.derive").traceId).toBe(traces[0]);
});

test("a trace goes on after a restart", async () => {
  await using upstream = await startUpstream();
  await using receiver = await startOtlpReceiver();
  upstream.hold();
  await using before = await serviceFor(upstream, receiver);
  const { id } = await before.submit(chatLines(1));
  await upstream.reached(1);
  const closing = before.close();
  upstream.release();
  await closing;
  const config = { tracing: { endpoint: receiver.endpoint } };
  const { dataDir } = before;
  await using after = await startTestService({ upstreamUrl: upstream.url, dataDir, config });
  expect((await after.ended(id)).status).toBe("completed");
  await after.close();
  expect(only(receiver, "batch.finalize").parentSpanId).toBe(only(receiver, "batch.create").spanId);
  expect(new Set(receiver.spans.map(({ traceId }) => traceId)).size).toBe(1);
});

test("without a place for traces a client's own is passed on as it came, and nothing is made up", async () => {
  await using upstream = await startUpstream();
  await using service = await serviceFor(upstream, null);
  const fileId = await service.upload(chatLines(1));
  const traced = await createWith(service, fileId, CLIENTS);
  await service.ended(traced.id);
  const untraced = await createWith(service, fileId, "00-nonsense-01");
  await service.ended(untraced.id);
  const wire = upstream.seen.map(({ headers }) => headers["traceparent"]);
  expect(wire).toEqual([CLIENTS, undefined]);
});

test("a request that is repeated under its idempotency key is the same request in any trace", async () => {
  await using service = await startTestService();
  const input_file_id = await service.upload(chatLines(1));
  const create = (traceparent: string) => {
    const headers = { traceparent, "idempotency-key": "once" };
    return createBatch(service.openai, input_file_id, {}, { headers });
  };
  const first = await create(CLIENTS);
  expect((await create(`00-${"1".repeat(32)}-${SPAN}-01`)).id).toBe(first.id);
});

test("a trace that is not sampled is passed on and not sent", async () => {
  await using upstream = await startUpstream();
  await using receiver = await startOtlpReceiver();
  await using service = await serviceFor(upstream, receiver);
  const fileId = await service.upload(chatLines(1));
  const { id } = await createWith(service, fileId, `00-${TRACE}-${SPAN}-00`);
  await service.ended(id);
  await service.close();
  expect(receiver.spans.map(({ name }) => name)).toEqual(["file.upload"]);
  expect(upstream.seen[0]?.headers["traceparent"]).toMatch(new RegExp(`^00-${TRACE}-.{16}-00$`));
});

test("a request that passes through is a trace of its own, or part of its client's", async () => {
  await using upstream = await startUpstream();
  await using receiver = await startOtlpReceiver();
  await using service = await serviceFor(upstream, receiver);
  const body = { model: "test-model", messages: [{ role: "user" as const, content: "Hello" }] };
  await service.openai.chat.completions.create(body, { headers: { traceparent: CLIENTS } });
  await service.close();
  const request = only(receiver, "interactive.request");
  const attempt = only(receiver, "upstream.attempt");
  expect([request.traceId, request.parentSpanId]).toEqual([TRACE, SPAN]);
  expect(attempt.parentSpanId).toBe(request.spanId);
  for (const { attributes, hasFailed } of [request, attempt]) {
    expect([attributes["http.response.status_code"], hasFailed]).toEqual([200, false]);
  }
  expect(attempt.attributes).not.toHaveProperty(["gen_ai.usage.input_tokens"]);
  expect(upstream.seen[0]?.headers["traceparent"]).toBe(`00-${TRACE}-${attempt.spanId}-01`);
});

test("a request whose route fails ends its span, with the error", async () => {
  const endings: (Ending | undefined)[] = [];
  const span = { traceparent: null, end: (ending?: Ending) => void endings.push(ending) };
  const route = { proxy: () => Promise.reject(new TypeError("a fault")) };
  const interactive = new Interactive({
    upstreams: { findRoute: () => route as never },
    clock: systemClock,
    tracing: { ...NO_TRACING, start: () => span },
    defaultModel: () => null,
    rulesOf: () => UNLIMITED,
    slots: { take: async () => () => {} },
  });
  const request = {
    project: "default",
    endpoint: "/v1/chat/completions",
    body: Buffer.from('{"model":"m","messages":[]}'),
    deployment: null,
    origin: { requestId: "req_1", traceparent: null },
  } as const;
  const answer = interactive.answer(request, new AbortController().signal);
  await expect(answer).rejects.toThrow("a fault");
  expect(endings).toEqual([{ problem: "TypeError" }]);
});

test("a receiver that refuses disturbs nothing, and the log says so once and briefly", async () => {
  await using upstream = await startUpstream();
  await using receiver = await startOtlpReceiver({
    status: 400,
    page: "<p>no</p>".repeat(100_000),
  });
  await using service = await serviceFor(upstream, receiver);
  const batch = await service.run(chatLines(3));
  expect(batch.status).toBe("completed");
  await service.close();
  expect(receiver.requestCount).toBeGreaterThan(0);
  const told = service.events.all.filter(({ event }) => event === "traces.not_sent");
  expect(told).toMatchObject([{ reason: "Bad Request", code: 400 }]);
  expect(JSON.stringify(told)).toMatch(/"said":"<p>no/);
  expect(JSON.stringify(told).length).toBeLessThan(1_000);
});

test("an answer that comes byte by byte is given up, as it would take gigabytes", async () => {
  await using upstream = await startUpstream();
  const chunks = "1\r\nx\r\n".repeat(100_000);
  const server = createServer((socket) => {
    socket.on("error", () => {});
    socket.once("data", () =>
      socket.write(`HTTP/1.1 400 Bad Request\r\ntransfer-encoding: chunked\r\n\r\n${chunks}`),
    );
  });
  const endpoint = `http://127.0.0.1:${await listening(server)}/v1/traces`;
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { tracing: { endpoint } },
  });
  await service.run(chatLines(1));
  await service.events.reached("traces.not_sent");
  const told = service.events.all.filter(({ event }) => event === "traces.not_sent");
  expect(told).toMatchObject([{ reason: expect.stringContaining("pieces that are too small") }]);
});

test("a receiver that is not there holds nothing up for long", async () => {
  await using upstream = await startUpstream();
  const gone = await startOtlpReceiver();
  await gone[Symbol.asyncDispose]();
  const service = await serviceFor(upstream, gone);
  expect((await service.run(chatLines(3))).status).toBe("completed");
  await service[Symbol.asyncDispose]();
});

test("only a valid traceparent counts", () => {
  const ids = `${TRACE}-${SPAN}`;
  expect(traceparentFrom(CLIENTS)).toBe(CLIENTS);
  expect(traceparentFrom(`00-${ids}-00`)).toBe(`00-${ids}-00`);
  expect(traceparentFrom(`cc-${ids}-01-what-will-come`)).toBe(CLIENTS);
  const invalid = [
    undefined,
    "",
    `00-${ids}`,
    `00-${ids}-01-more`,
    `00-${ids}-1`,
    `ff-${ids}-01`,
    `00-${"0".repeat(32)}-${SPAN}-01`,
    `00-${TRACE}-${"0".repeat(16)}-01`,
    CLIENTS.toUpperCase(),
    `cc-${ids}-01.x`,
  ];
  expect(invalid.map((header) => traceparentFrom(header))).toEqual(invalid.map(() => null));
});

test("a receiver whose answers never end costs eight connections", () => {
  const lines: string[] = [];
  const log = createLog("info", { write: (line: string) => void lines.push(line) });
  let underWay = 0;
  const silent = { export: () => underWay++, shutdown: () => Promise.resolve() };
  const exporter = new LoggingExporter({ exporter: silent, log, redactor: new Redactor() });
  const results: number[] = [];
  for (let n = 0; n < 10; n++) exporter.export([], ({ code }) => results.push(code));

  expect(underWay).toBe(8);
  expect(results).toEqual([1, 1]);
  expect(lines).toHaveLength(1);
  expect(lines[0]).toContain("traces.not_sent");
});
