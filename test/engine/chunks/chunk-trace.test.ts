/** Requests carry the name of the span they are sent in, and without spans the client's own. */
import { expect, test } from "vitest";
import { ChunkTrace } from "../../../src/engine/chunks/chunk-trace.ts";
import type { ClaimedChunk } from "../../../src/store/chunks.ts";
import {
  NO_SPAN,
  NO_TRACING,
  type SpanStart,
  type Tracing,
} from "../../../src/telemetry/tracing.ts";
import { aBatch } from "../../support/store-builders.ts";

const OWN = `00-${"a".repeat(32)}-${"b".repeat(16)}-01`;

function claimedWith(traceparent: string | null): ClaimedChunk {
  const chunk = { number: 3, model: "llama" };
  return { batch: aBatch({ traceparent }), chunk } as unknown as ClaimedChunk;
}

/** Spans that are named by their order. */
function countedSpans(isOn: boolean) {
  const started: SpanStart[] = [];
  const start: Tracing["start"] = (name, span) => {
    started.push(span);
    return isOn ? { traceparent: `${name} ${started.length}`, end: () => {} } : NO_SPAN;
  };
  return { started, tracing: { ...NO_TRACING, isOn, start } };
}

test("without tracing no span is made for a line, and the client's own name goes with it", () => {
  const { started, tracing } = countedSpans(false);
  const trace = new ChunkTrace(tracing, claimedWith(OWN));
  const countBefore = started.length;
  const span = trace.startLine(1);
  expect(started.length).toBe(countBefore);
  expect(trace.traceparentOf(span)).toBe(OWN);
  const unnamed = new ChunkTrace(tracing, claimedWith(null));
  expect(unnamed.traceparentOf(unnamed.startLine(1))).toBeNull();
});

test("the span of a line is part of its chunk, that one is part of the batch, and the request names the line", () => {
  const { started, tracing } = countedSpans(true);
  const trace = new ChunkTrace(tracing, claimedWith(OWN));
  expect(trace.traceparentOf(trace.startLine(7))).toBe("line.send 2");
  expect(started.map(({ parent }) => parent)).toEqual([OWN, "chunk.run 1"]);
  expect(started[1]?.attributes).toMatchObject({
    "batchd.chunk.number": 3,
    "batchd.line.number": 7,
  });
});
