/**
 * Parses one line of an input file into the extents of its parts: `{"custom_id", "method", "url", "body"}`.
 *
 * Intake checks the parts (`line-check.ts`). The chunk runner reads a line that is known to be good, so it takes the
 * extents and never decodes the body. The last of several equal keys counts, as with `JSON.parse`. The upload has
 * already checked the UTF-8.
 */
import {
  decodeStart,
  type Extent,
  indexOfKey,
  isInOtherCase,
  isObjectAt,
  isOther,
  isSame,
  isStringAt,
  quoted,
} from "../text/json.ts";
import { JsonScan, type Member } from "../text/json-scan.ts";
import { skipSpace } from "../text/json-tokens.ts";
import type { Reading } from "../text/reading.ts";
import {
  type AllowedAnswer,
  estimateInputTokens,
  type Images,
  NOTHING_SAID,
  noteMember,
} from "./token-estimate.ts";

/** The extents of the parts of a line; null for a part that is missing. */
export interface ParsedLine extends AllowedAnswer, Images {
  readonly customId: Extent | null;
  readonly method: Extent | null;
  readonly url: Extent | null;
  readonly body: Extent | null;
  readonly model: Extent | null;
  /** A key of the body that names another model: `model` again, with another value, or `model` but for its case. */
  readonly otherModel: Extent | null;
  /** Whether the body asks for a stream, at least at servers that take keys in any case. */
  readonly asksToStream: boolean;
  readonly messages: Extent | null;
  readonly input: Extent | null;
  /** The number of commas between the elements of `input`, where it is an array. */
  readonly inputCommaCount: number;
  /**
   * The first members of the body apart from its model and its content, four numbers for each: the extents of its key and of
   * its value.
   */
  readonly members: readonly number[];
}

const LINE_KEYS = quoted(["custom_id", "method", "url", "body"]);
const BODY_KEYS = quoted(["model", "stream", "messages", "input"]);
const TRUE = Buffer.from("true");

/** The most numbers that are noted. No API has so many parameters. */
const MAX_MEMBER_NUMBERS = 4 * 256;

type BodyParts = Pick<
  ParsedLine,
  | "model"
  | "otherModel"
  | "asksToStream"
  | "messages"
  | "input"
  | "inputCommaCount"
  | "members"
  | keyof AllowedAnswer
>;
type Draft<Parts> = { -readonly [Part in keyof Parts]: Parts[Part] };
type BodyDraft = Draft<BodyParts> & { members: number[] };

// Each line makes one of these. A spread would take a tenth of the time of validation.
const emptyBody = (): BodyDraft => ({
  model: null,
  otherModel: null,
  asksToStream: false,
  messages: null,
  input: null,
  inputCommaCount: 0,
  members: [],
  choiceCount: NOTHING_SAID.choiceCount,
  promptCount: NOTHING_SAID.promptCount,
  maxTokens: NOTHING_SAID.maxTokens,
});

/** Parses one line after the other. The constructor makes the callback of the scan once, not once a line. */
export class LineReading implements Reading<ParsedLine | null> {
  readonly #scan = new JsonScan(2, (member) => this.#take(member));
  #bytes: Buffer = Buffer.alloc(0);
  #customId: Extent | null = null;
  #method: Extent | null = null;
  #url: Extent | null = null;
  #body: Extent | null = null;
  /** The images in the body, and those in the whole line up to the latest of its members. */
  #imageCount = 0;
  #imageBytes = 0;
  #seenImageCount = 0;
  #seenImageBytes = 0;
  /** What is in the body. */
  #inBody: BodyParts | null = null;
  /** What is in the unfinished member of the line, which may turn out to be the body. */
  #inMember: BodyDraft | null = null;

  begin(bytes: Buffer): void {
    this.#bytes = bytes;
    this.#customId = null;
    this.#method = null;
    this.#url = null;
    this.#body = null;
    this.#imageCount = 0;
    this.#imageBytes = 0;
    this.#seenImageCount = 0;
    this.#seenImageBytes = 0;
    this.#inBody = null;
    this.#inMember = null;
    this.#scan.begin(bytes);
  }

  advance(byteCount: number): boolean {
    return this.#scan.advance(byteCount);
  }

  /** Returns null for bytes that are not one JSON object. */
  result(): ParsedLine | null {
    const bytes = this.#bytes;
    const isObject = isObjectAt(bytes, skipSpace(bytes, 0, bytes.length));
    if (!this.#scan.isValid || !isObject) return null;
    const inBody = this.#inBody ?? emptyBody();
    return {
      customId: this.#customId,
      method: this.#method,
      url: this.#url,
      body: this.#body,
      model: inBody.model,
      otherModel: inBody.otherModel,
      asksToStream: inBody.asksToStream,
      messages: inBody.messages,
      input: inBody.input,
      inputCommaCount: inBody.inputCommaCount,
      members: inBody.members,
      choiceCount: inBody.choiceCount,
      promptCount: inBody.promptCount,
      maxTokens: inBody.maxTokens,
      imageCount: this.#imageCount,
      imageBytes: this.#imageBytes,
    };
  }

  #take(member: Member): void {
    if (member.depth === 1) this.#takeOfLine(member);
    else this.#takeOfBody(member);
  }

  #takeOfLine({ keyStart, keyEnd, start, end }: Member): void {
    const key = indexOfKey(this.#bytes, keyStart, keyEnd, LINE_KEYS);
    const inMember = this.#inMember;
    this.#inMember = null;
    if (key === 0) this.#customId = { start, end };
    else if (key === 1) this.#method = { start, end };
    else if (key === 2) this.#url = { start, end };
    else if (key === 3) {
      this.#body = { start, end };
      // The last of two bodies counts, so nothing of the first one may remain.
      this.#inBody = inMember;
      this.#imageCount = this.#scan.imageCount - this.#seenImageCount;
      this.#imageBytes = this.#scan.imageBytes - this.#seenImageBytes;
    }
    this.#seenImageCount = this.#scan.imageCount;
    this.#seenImageBytes = this.#scan.imageBytes;
  }

  #takeOfBody(member: Member): void {
    const { keyStart, keyEnd, start, end, commaCount } = member;
    this.#inMember ??= emptyBody();
    const parts = this.#inMember;
    const key = indexOfKey(this.#bytes, keyStart, keyEnd, BODY_KEYS);
    if (key === 0) {
      const model = { start, end };
      if (isOther(this.#bytes, parts.model, model)) {
        parts.otherModel = { start: keyStart, end: keyEnd };
      }
      parts.model = model;
    } else if (key === 2) parts.messages = { start, end };
    else if (key === 3) {
      parts.input = { start, end };
      parts.inputCommaCount = commaCount;
    } else {
      if (key === 1) parts.asksToStream = this.#isTrue(member);
      else this.#noteOther(parts, member);
      if (parts.members.length < MAX_MEMBER_NUMBERS) {
        parts.members.push(keyStart, keyEnd, start, end);
      }
    }
  }

  #noteOther(parts: BodyDraft, member: Member): void {
    const key = { start: member.keyStart, end: member.keyEnd };
    if (isInOtherCase(this.#bytes, key, "model")) parts.otherModel = key;
    else if (isInOtherCase(this.#bytes, key, "stream")) parts.asksToStream ||= this.#isTrue(member);
    noteMember(parts, this.#bytes, member);
  }

  #isTrue({ start, end }: Member): boolean {
    return isSame(this.#bytes, start, end, TRUE);
  }
}

const reader = new LineReading();

/**
 * Parses a whole line; null for bytes that are not one JSON object. A long line blocks the event loop: use {@link
 * LineReading} for it.
 */
export function parseLine(bytes: Buffer): ParsedLine | null {
  reader.begin(bytes);
  reader.advance(bytes.length);
  return reader.result();
}

/**
 * Returns the text of a string value, or its first {@link MAX_TEXT_BYTES}; null for a part that is missing or no
 * string.
 */
export const textOf = (bytes: Buffer, part: Extent | null): string | null =>
  part !== null && isStringAt(bytes, part.start) ? decodeStart(bytes, part, MAX_TEXT_BYTES) : null;

/** Every name is shorter than this, in any spelling. */
const MAX_TEXT_BYTES = 16 * 1024;

const NULL = Buffer.from("null");
const EMPTY = Buffer.from('""');

/** Returns whether a line takes the model of its batch: it has none itself, or `null`, or `""`. */
export const leavesModelOpen = (bytes: Buffer, { model }: ParsedLine): boolean =>
  model === null ||
  isSame(bytes, model.start, model.end, EMPTY) ||
  isSame(bytes, model.start, model.end, NULL);

/** Returns the model of a line; null when neither the line nor the default names one, or the value is no name. */
export const modelOf = (
  bytes: Buffer,
  line: ParsedLine,
  defaultModel: string | null,
): string | null => (leavesModelOpen(bytes, line) ? defaultModel : textOf(bytes, line.model));

/** Returns the estimate of the tokens of the body. */
export const inputTokensOf = (line: ParsedLine): number =>
  line.body === null ? 0 : estimateInputTokens(line.body.end - line.body.start, line);

/** Returns the body as the client wrote it. The line must have one. */
export function bodyOf(bytes: Buffer, { body }: ParsedLine): Buffer {
  if (body === null) throw new Error("a line without a body reached the upstream");
  return bytes.subarray(body.start, body.end);
}
