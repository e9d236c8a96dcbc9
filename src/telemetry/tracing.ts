/**
 * Traces work from the upload of a file to its output, with times and causes.
 *
 * A span is named by its `traceparent` (W3C Trace Context). The name is stored with files and batches and sent with
 * every request to an upstream, so a trace continues across restarts and machines. Without a receiver no spans are
 * made, but the `traceparent` of a client is still passed on.
 */

import type { Outcome } from "../batch/outcome.ts";

/** The spans, with the work that each one covers. */
export const SPANS = {
  "file.upload": "A file, from its first byte to its row in the store.",
  "batch.create":
    "The row of a batch. Part of the client's trace, or else of the trace of the input file, or of the batch whose lines it runs.",
  "batch.derive": "The input is made of lines of another batch.",
  "batch.validate": "The input is read, checked and planned.",
  "chunk.run": "The lines of one chunk under one lease.",
  "line.send":
    "One line, from its admission to its final outcome, all attempts and waits included.",
  "upstream.attempt": "One exchange with one target; its `traceparent` goes with it.",
  "batch.finalize": "The results are written and the batch becomes final.",
  "interactive.request": "An interactive request, to the end of its answer.",
} as const;

export type SpanName = keyof typeof SPANS;

/** The origin of a thing that a client asked for. */
export interface Origin {
  readonly requestId: string;
  /** The client's own `traceparent`; null without one. */
  readonly traceparent: string | null;
}

/** Attributes by their names in OpenTelemetry's semantic conventions. Other names begin with `batchd.`. */
export type Attributes = Readonly<Record<string, string | number | boolean | null>>;

export interface SpanStart {
  /** The `traceparent` of the parent; null begins a trace. */
  readonly parent: string | null;
  /** The side of a request that the span stands for; left out for work without a request. */
  readonly kind?: "server" | "client";
  readonly attributes: Attributes;
  /** The `traceparent` of a related span in another trace. */
  readonly link?: string | null;
}

export interface Ending {
  readonly attributes?: Attributes;
  /** The fault in one word; left out when there is none. */
  readonly problem?: string | null;
}

export interface Span {
  /** The name for children of this span, here or elsewhere; null when tracing is off. */
  readonly traceparent: string | null;
  end(ending?: Ending): void;
}

export interface Tracing {
  /** Whether spans are made. The hot path checks it before it gathers attributes. */
  readonly isOn: boolean;
  start(name: SpanName, span: SpanStart): Span;
  /** Sends the remaining spans. Never rejects. */
  close(): Promise<void>;
}

export const NO_SPAN: Span = { traceparent: null, end: () => {} };

export const NO_TRACING: Tracing = {
  isOn: false,
  start: () => NO_SPAN,
  close: async () => {},
};

const TRACEPARENT =
  /^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-|$)/;
const VERSION_0_LENGTH = 55;

/** Returns the header of a client in the form to pass on; null for a missing or invalid one. */
export function traceparentFrom(header: string | undefined): string | null {
  if (header === undefined || !TRACEPARENT.test(header)) return null;
  if (header.startsWith("00-")) return header.length === VERSION_0_LENGTH ? header : null;
  // A later version of the header may have more fields, of which only the first ones are known.
  return `00-${header.slice("00-".length, VERSION_0_LENGTH)}`;
}

/**
 * Ends the span when `work` ends, with the attributes that `describe` finds in the result. A thrown error is the
 * problem of the span.
 */
export async function during<T>(
  span: Span,
  work: () => Promise<T>,
  describe: (result: T) => Attributes = () => ({}),
): Promise<T> {
  const result = await endedByError(span, work);
  span.end({ attributes: describe(result) });
  return result;
}

/** Ends the span only when `work` throws, for work that goes on after its result. */
export async function endedByError<T>(span: Span, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    span.end({ problem: error instanceof Error ? error.name : "error" });
    throw error;
  }
}

/** Returns the ending of a span for the outcome of a line or an attempt. */
export function endingOf(outcome: Outcome): Ending {
  if (!("status" in outcome)) return { problem: outcome.kind };
  const { status } = outcome;
  const attributes = { "http.response.status_code": status };
  return { attributes, problem: status >= 400 ? String(status) : null };
}
