/** Counts the bytes of a source. It keeps the error of the source, because a failed upload may report a later one. */
export class CountedSource {
  readonly #source: AsyncIterable<Uint8Array>;
  bytes = 0;
  failure: { readonly reason: unknown } | null = null;

  constructor(source: AsyncIterable<Uint8Array>) {
    this.#source = source;
  }

  async *pieces(): AsyncGenerator<Uint8Array> {
    let isWithReader = false;
    try {
      for await (const piece of this.#source) {
        this.bytes += piece.byteLength;
        isWithReader = true;
        yield piece;
        isWithReader = false;
      }
    } catch (reason) {
      // A stream of Node throws at its source when its reader leaves early, as an upload does that the bucket refuses.
      if (!isWithReader) this.failure = { reason };
      throw reason;
    }
  }
}
