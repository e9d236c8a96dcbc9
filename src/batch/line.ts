/**
 * One line of an input file: where its parts lie in the bytes.
 *
 * A line is `{"custom_id", "method", "url", "body"}`. Intake checks it (`line-check.ts`); the chunk runner, for
 * which the line is known to be good, takes the extents and never decodes the body. As with
 * `JSON.parse`, the last of several equal keys counts. That the file is UTF-8 was checked when it was uploaded.
 */
import {
  decodeString,
  type Extent,
  indexOfKey,
  isObjectAt,
  isSame,
  isStringAt,
  quoted,
  skipObject,
  skipSpace,
  skipValue,
} from "./json.ts";

/** Where the parts of a line lie; null where the line has no such part. */
export interface ParsedLine {
  readonly customId: Extent | null;
  readonly method: Extent | null;
  readonly url: Extent | null;
  readonly body: Extent | null;
  readonly model: Extent | null;
  readonly stream: Extent | null;
  readonly messages: Extent | null;
  readonly input: Extent | null;
}

const LINE_KEYS = quoted(["custom_id", "method", "url", "body"]);
const BODY_KEYS = quoted(["model", "stream", "messages", "input"]);
const INVALID = -1;

type Draft = { -readonly [Part in keyof ParsedLine]: ParsedLine[Part] };

const emptyDraft = (): Draft => ({
  customId: null,
  method: null,
  url: null,
  body: null,
  model: null,
  stream: null,
  messages: null,
  input: null,
});

/** Reads one line at a time. The functions it hands to the scan are made once, not for each line. */
class LineReader {
  #bytes: Buffer = Buffer.alloc(0);
  #line = emptyDraft();

  /** Null when the bytes are not one JSON object. */
  read(bytes: Buffer): ParsedLine | null {
    const line = emptyDraft();
    const end = bytes.length;
    this.#bytes = bytes;
    this.#line = line;
    const after = skipObject(bytes, skipSpace(bytes, 0, end), end, this.#readMember);
    const isWhole = after !== INVALID && skipSpace(bytes, after, end) === end;
    return isWhole ? line : null;
  }

  readonly #readMember = (keyStart: number, keyEnd: number, start: number): number => {
    const key = indexOfKey(this.#bytes, keyStart, keyEnd, LINE_KEYS);
    if (key === 3) return this.#readBody(start);
    const end = skipValue(this.#bytes, start, this.#bytes.length);
    if (key === 0) this.#line.customId = { start, end };
    else if (key === 1) this.#line.method = { start, end };
    else if (key === 2) this.#line.url = { start, end };
    return end;
  };

  #readBody(start: number): number {
    const bytes = this.#bytes;
    const line = this.#line;
    // Of two bodies the last one counts, with nothing of the first.
    line.model = line.stream = line.messages = line.input = null;
    const end = isObjectAt(bytes, start)
      ? skipObject(bytes, start, bytes.length, this.#readBodyMember)
      : skipValue(bytes, start, bytes.length);
    line.body = { start, end };
    return end;
  }

  readonly #readBodyMember = (keyStart: number, keyEnd: number, start: number): number => {
    const end = skipValue(this.#bytes, start, this.#bytes.length);
    const key = indexOfKey(this.#bytes, keyStart, keyEnd, BODY_KEYS);
    if (key === 0) this.#line.model = { start, end };
    else if (key === 1) this.#line.stream = { start, end };
    else if (key === 2) this.#line.messages = { start, end };
    else if (key === 3) this.#line.input = { start, end };
    return end;
  };
}

const reader = new LineReader();

/** Null when the bytes are not one JSON object. */
export const parseLine = (bytes: Buffer): ParsedLine | null => reader.read(bytes);

/** The text of a string value; null when the part is missing or is not a string. */
export const textOf = (bytes: Buffer, part: Extent | null): string | null =>
  part !== null && isStringAt(bytes, part.start) ? decodeString(bytes, part) : null;

const NULL = Buffer.from("null");
const EMPTY = Buffer.from('""');

/** Whether a line leaves its model to the batch: it has none, or one that is `null` or `""`. */
export const leavesModelOpen = (bytes: Buffer, { model }: ParsedLine): boolean =>
  model === null ||
  isSame(bytes, model.start, model.end, EMPTY) ||
  isSame(bytes, model.start, model.end, NULL);

/** The model that a line asks for; null when nobody says one, or what the line says is no name. */
export const modelOf = (
  bytes: Buffer,
  line: ParsedLine,
  defaultModel: string | null,
): string | null => (leavesModelOpen(bytes, line) ? defaultModel : textOf(bytes, line.model));

/** The body as the client wrote it; only of a line that has one. */
export function bodyOf(bytes: Buffer, { body }: ParsedLine): Buffer {
  if (body === null) throw new Error("a line without a body reached the upstream");
  return bytes.subarray(body.start, body.end);
}
