/**
 * One line of an input file: where its parts lie in the bytes.
 *
 * A line is `{"custom_id", "method", "url", "body"}`. Intake checks it (`line-check.ts`); the chunk runner, for
 * which the line is known to be good, takes the extents and never decodes the body. As with
 * `JSON.parse`, the last of several equal keys counts. That the file is UTF-8 was checked when it was uploaded.
 */
import {
  decodeStart,
  type Extent,
  indexOfKey,
  isObjectAt,
  isSame,
  isStringAt,
  quoted,
} from "./json.ts";
import { JsonScan, type Member, skipSpace } from "./json-scan.ts";
import type { Reading } from "./reading.ts";

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
  /** Commas between the elements of `input`, where it is an array. */
  readonly inputCommaCount: number;
}

const LINE_KEYS = quoted(["custom_id", "method", "url", "body"]);
const BODY_KEYS = quoted(["model", "stream", "messages", "input"]);

type BodyParts = Pick<ParsedLine, "model" | "stream" | "messages" | "input" | "inputCommaCount">;
type Draft<Parts> = { -readonly [Part in keyof Parts]: Parts[Part] };

const emptyBody = (): Draft<BodyParts> => ({
  model: null,
  stream: null,
  messages: null,
  input: null,
  inputCommaCount: 0,
});

/** Reads one line after the other. The function that it hands to the scan is made once, not for each line. */
export class LineReading implements Reading<ParsedLine | null> {
  readonly #scan = new JsonScan(2, (member) => this.#take(member));
  #bytes: Buffer = Buffer.alloc(0);
  #line: Draft<Omit<ParsedLine, keyof BodyParts>> & BodyParts = emptyLine();
  /** Where the values are in the unfinished member of the line, which may turn out to be the body. */
  #parts: Draft<BodyParts> | null = null;

  begin(bytes: Buffer): void {
    this.#bytes = bytes;
    this.#line = emptyLine();
    this.#parts = null;
    this.#scan.begin(bytes);
  }

  advance(byteCount: number): boolean {
    return this.#scan.advance(byteCount);
  }

  /** Null when the bytes are not one JSON object. */
  result(): ParsedLine | null {
    const bytes = this.#bytes;
    const isObject = isObjectAt(bytes, skipSpace(bytes, 0, bytes.length));
    return this.#scan.isValid && isObject ? this.#line : null;
  }

  #take(member: Member): void {
    if (member.depth === 1) this.#takeOfLine(member);
    else this.#takeOfBody(member);
  }

  #takeOfLine({ keyStart, keyEnd, start, end }: Member): void {
    const key = indexOfKey(this.#bytes, keyStart, keyEnd, LINE_KEYS);
    const parts = this.#parts;
    this.#parts = null;
    if (key === 0) this.#line.customId = { start, end };
    else if (key === 1) this.#line.method = { start, end };
    else if (key === 2) this.#line.url = { start, end };
    // Of two bodies the last one counts, with nothing of the first.
    else if (key === 3) {
      this.#line = { ...this.#line, ...(parts ?? emptyBody()), body: { start, end } };
    }
  }

  #takeOfBody({ keyStart, keyEnd, start, end, commaCount }: Member): void {
    const key = indexOfKey(this.#bytes, keyStart, keyEnd, BODY_KEYS);
    if (key === -1) return;
    this.#parts ??= emptyBody();
    if (key === 0) this.#parts.model = { start, end };
    else if (key === 1) this.#parts.stream = { start, end };
    else if (key === 2) this.#parts.messages = { start, end };
    else {
      this.#parts.input = { start, end };
      this.#parts.inputCommaCount = commaCount;
    }
  }
}

const emptyLine = () => ({ customId: null, method: null, url: null, body: null, ...emptyBody() });

const reader = new LineReading();

/** Null when the bytes are not one JSON object. Takes its time with a long line: see {@link LineReading}. */
export function parseLine(bytes: Buffer): ParsedLine | null {
  reader.begin(bytes);
  reader.advance(bytes.length);
  return reader.result();
}

/** The text of a string value, or its first {@link MAX_TEXT_BYTES}; null when the part is missing or is not a string. */
export const textOf = (bytes: Buffer, part: Extent | null): string | null =>
  part !== null && isStringAt(bytes, part.start) ? decodeStart(bytes, part, MAX_TEXT_BYTES) : null;

/** No name of anything is as long, however it is spelled. */
const MAX_TEXT_BYTES = 16 * 1024;

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
