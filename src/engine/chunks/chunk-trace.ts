/** Writes the spans of a chunk and of its lines. Without tracing it must make no objects, as it is on the hot path. */
import type { ClaimedChunk } from "../../store/chunks.ts";
import { NO_SPAN, type Span, type Tracing } from "../../telemetry/tracing.ts";

export class ChunkTrace {
  readonly span: Span;
  readonly #tracing: Tracing;
  readonly #ids: { readonly "batchd.batch.id": string; readonly "batchd.chunk.number": number };
  /** The parent of all spans of the lines. */
  readonly #parent: string | null;

  constructor(tracing: Tracing, { batch, chunk }: ClaimedChunk) {
    const { traceparent: parent } = batch;
    this.#tracing = tracing;
    this.#ids = { "batchd.batch.id": batch.id, "batchd.chunk.number": chunk.number };
    const attributes = { ...this.#ids, "gen_ai.request.model": chunk.model };
    this.span = tracing.start("chunk.run", { parent, attributes });
    this.#parent = this.span.traceparent ?? parent;
  }

  startLine(lineNumber: number): Span {
    if (!this.#tracing.isOn) return NO_SPAN;
    const attributes = { ...this.#ids, "batchd.line.number": lineNumber };
    return this.#tracing.start("line.send", { parent: this.#parent, attributes });
  }

  /** Returns the header for a request sent in `span`. Without spans the client's own header is passed on. */
  traceparentOf(span: Span): string | null {
    return span.traceparent ?? this.#parent;
  }
}
