/** A pass over a text in small steps, so that a long text does not block the event loop. */
export interface Reading<Result> {
  begin(bytes: Buffer): void;
  /** Reads about `byteCount` bytes; true at the end of the text. */
  advance(byteCount: number): boolean;
  /** Returns what the pass found. The pass must be complete. */
  result(): Result;
}
