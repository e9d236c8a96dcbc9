/**
 * Traces, from the upload of a file to its output: what took how long, and because of what.
 *
 * A span is named by its `traceparent` (W3C Trace Context), which travels with the rows of files and batches and
 * with every request to an upstream, so a trace goes on over restarts and over machines. Without a place
 * to send them no spans are made; a `traceparent` that a client sent is passed on all the same.
 */

import type { Outcome } from "../batch/outcome.ts";

/** What is traced, and what each span spans. */
export const SPANS = {
  "file.upload": "A file, from its first byte to its row in the store.",
  "batch.create":
    "The row of a batch. Part of the client's trace, or else of the trace of the input file.",
  "batch.validate": "The input is read, checked and planned.",
  "chunk.run": "The lines of one chunk under one lease.",
  "line.send":
    "One line, from its admission to its final outcome, all attempts and waits included.",
  "upstream.attempt": "One exchange with one target; its `traceparent` goes with it.",
  "batch.finalize": "The results are written and the batch becomes final.",
  "interactive.request": "An interactive request, to the end of its answer.",
} as const;

export type SpanName = keyof typeof SPANS;

/** Where something that a client asked for comes from. */
export interface Origin {
  readonly requestId: string;
  /** The client's own; null without one. */
  readonly traceparent: string | null;
}

/** Names as in the semantic conventions of OpenTelemetry where they have one, below `batchd.` otherwise. */
export type Attributes = Readonly<Record<string, string | number | boolean | null>>;

export interface SpanStart {
  /** The `traceparent` of what it is part of; null begins a trace. */
  readonly parent: string | null;
  /** Whether it stands for a request that somebody sent, or that is sent to somebody. */
  readonly kind?: "server" | "client";
  readonly attributes: Attributes;
  /** The `traceparent` of a span in another trace that it goes back to. */
  readonly link?: string | null;
}

export interface Ending {
  readonly attributes?: Attributes;
  /** What went wrong, in a word. Left out: nothing. */
  readonly problem?: string | null;
}

export interface Span {
  /** For whatever becomes part of it, here or elsewhere; null when nothing is traced. */
  readonly traceparent: string | null;
  end(ending?: Ending): void;
}

export interface Tracing {
  /** On the hot path: whether it is worth saying what a span is about. */
  readonly isOn: boolean;
  start(name: SpanName, span: SpanStart): Span;
  /** Sends what has not been sent yet. Never rejects. */
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

/** The header of a client as it may be passed on; null when it is not there or not valid. */
export function traceparentFrom(header: string | undefined): string | null {
  if (header === undefined || !TRACEPARENT.test(header)) return null;
  if (header.startsWith("00-")) return header.length === VERSION_0_LENGTH ? header : null;
  // Of a later version only this much is known.
  return `00-${header.slice("00-".length, VERSION_0_LENGTH)}`;
}

/** Ends the span when `work` does, with what `describe` finds to say of its result. What is thrown is its problem. */
export async function during<T>(
  span: Span,
  work: () => Promise<T>,
  describe: (result: T) => Attributes = () => ({}),
): Promise<T> {
  try {
    const result = await work();
    span.end({ attributes: describe(result) });
    return result;
  } catch (error) {
    span.end({ problem: error instanceof Error ? error.name : "error" });
    throw error;
  }
}

/** How a line ends, or an attempt at it. */
export function endingOf(outcome: Outcome): Ending {
  if (!("status" in outcome)) return { problem: outcome.kind };
  const { status } = outcome;
  const attributes = { "http.response.status_code": status };
  return { attributes, problem: status >= 400 ? String(status) : null };
}
