/** Counts the bytes of a source. It keeps the error of the source, because a failed upload may report a later one. */
export class CountedSource {
  readonly #source: AsyncIterable<Uint8Array>;
  bytes = 0;
  failure: { readonly reason: unknown } | null = null;

  constructor(source: AsyncIterable<Uint8Array>) {
    this.#source = source;
  }

  async *pieces(): AsyncGenerator<Uint8Array> {
    try {
      for await (const piece of this.#source) {
        this.bytes += piece.byteLength;
        yield piece;
      }
    } catch (reason) {
      this.failure = { reason };
      throw reason;
    }
  }
}
