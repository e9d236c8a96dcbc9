/**
 * Checks the delimiters of a multipart form before its parser reads them.
 *
 * A file may hold the boundary of its own form, as boundaries are the choice of the client. The parser takes it for the end of
 * the file, skips the rest as a part without a name or as bytes behind the form, and reports nothing. A file must never be
 * stored shortened, so such a form is refused.
 */
import { AsyncLocalStorage } from "node:async_hooks";
import { Transform, type TransformCallback } from "node:stream";
import { PublicError } from "../errors.ts";
import { timeForMore } from "../resources/time-slice.ts";

/** The parser spends some microseconds on each part, and 64 KiB have room for 6,000 empty ones. */
const MAX_PARTS = 64;

const CR = 13;
const LINE_END = "\r\n";
const CLOSE = "--";
const NOTHING = Buffer.alloc(0);

/** Returns the boundary that a Content-Type names; null when it names none. */
export function boundaryIn(contentType: string): string | null {
  const [, quoted, token] =
    /;\s*boundary\s*=\s*(?:"([^"\\]+)"|([^\s;"]+))/i.exec(contentType) ?? [];
  return quoted ?? token ?? null;
}

/** Passes a form on, and fails at the first delimiter that a file rather than its form has. */
export class FormDelimiters extends Transform {
  readonly #delimiter: Buffer;
  /** The last bytes, which may begin a delimiter. The first one stands at the begin of the form, without the end of a line. */
  #rest: Buffer = Buffer.from(LINE_END);
  #isClosed = false;
  #partCount = 0;
  /** The pieces come without the request to which they belong. */
  readonly #forRequest = AsyncLocalStorage.snapshot();

  constructor(boundary: string) {
    super();
    this.#delimiter = Buffer.from(`${LINE_END}--${boundary}`, "latin1");
  }

  /** The number of parts that began so far. */
  get partCount(): number {
    return this.#partCount;
  }

  /**
   * A file of nothing but the first byte of a short delimiter takes the search, here and in the parser, 20 times as long as
   * others. Hundreds of uploads may have a piece in the same turn of the event loop.
   */
  override _transform(piece: Buffer, _encoding: BufferEncoding, done: TransformCallback): void {
    const wait = this.#forRequest(timeForMore);
    if (wait === null) this.#pass(piece, done);
    else void wait.then(() => this.#pass(piece, done));
  }

  #pass(piece: Buffer, done: TransformCallback): void {
    const fault = this.#faultIn(piece);
    if (fault === null) done(null, piece);
    else done(fault);
  }

  #faultIn(piece: Buffer): PublicError | null {
    const bytes = this.#rest.length === 0 ? piece : Buffer.concat([this.#rest, piece]);
    let readTo = 0;
    while (!this.#isClosed) {
      const at = bytes.indexOf(this.#delimiter, readTo);
      const end = at + this.#delimiter.length;
      if (at === -1 || end + 2 > bytes.length) {
        this.#rest =
          at === -1 ? this.#beginIn(bytes.subarray(readTo)) : Buffer.from(bytes.subarray(at));
        return null;
      }
      const mark = bytes.toString("latin1", end, end + 2);
      if (mark === CLOSE) this.#isClosed = true;
      else if (mark !== LINE_END) {
        const isByHand = this.#partCount === 0 && mark.startsWith("\n");
        return isByHand ? lineFeedsAlone() : boundaryInside();
      } else if (++this.#partCount > MAX_PARTS) {
        return new PublicError("invalid_request", "The form has too many parts.");
      }
      // The mark may itself begin the next delimiter.
      readTo = mark === CLOSE ? end + 2 : end;
    }
    this.#rest = NOTHING;
    return isBlank(bytes.subarray(readTo)) ? null : boundaryInside();
  }

  /** Returns a copy of the bytes at the end that may begin a delimiter. */
  #beginIn(bytes: Buffer): Buffer {
    const last = bytes.subarray(Math.max(0, bytes.length - this.#delimiter.length + 1));
    const at = last.lastIndexOf(CR);
    return at === -1 ? NOTHING : Buffer.from(last.subarray(at));
  }
}

export const boundaryInside = () =>
  new PublicError(
    "invalid_request",
    "The upload is broken multipart/form-data: its boundary occurs inside a part, bytes follow its end, or a part is no form-data, has no name, or has a line break in a name. (HINT: Use a boundary that the file does not contain, and file names of one line.)",
  );

/** The error for a form that was written by hand. Its first delimiter shows it. */
const lineFeedsAlone = () =>
  new PublicError(
    "invalid_request",
    "The upload is broken multipart/form-data: its lines end with LF, and must end with CRLF.",
  );

const isBlank = (bytes: Buffer) => bytes.toString("latin1").trim() === "";
