/** One pass over a text, in as many steps as it takes: a long text must not keep everything else waiting. */
export interface Reading<Result> {
  begin(bytes: Buffer): void;
  /** Goes on for about so many bytes; true when all is read. */
  advance(byteCount: number): boolean;
  /** What was found, once all is read. */
  result(): Result;
}
