/**
 * Templates of derived inputs: the body of each line, with placeholders for parts of the line of the source and of its
 * answer. `{{output.choices.0.message.content}}` is such a placeholder.
 *
 * A placeholder that is the whole of a string becomes the value itself. Within a string it becomes text: strings as
 * they are, numbers and booleans as they are written, objects and lists as JSON. Values are copied as bytes, never decoded.
 * A template is parsed once. What a line may grow to is known before a byte of it is built, so a template that repeats a
 * large answer cannot fill the memory.
 */
import type { Extent } from "../text/json.ts";
import { isArrayAt, isObjectAt, isStringAt } from "../text/json.ts";
import type { JsonPath } from "../text/json-paths.ts";
import { BACKSLASH, QUOTE } from "../text/json-tokens.ts";

/** The longest template, as JSON in UTF-8. The row of its batch holds it, and rows are read again and again. */
const MAX_TEMPLATE_BYTES = 32 * 1024;
const MAX_DEPTH = 32;

/** What a path begins with: a part of the line of the source. */
const TEMPLATE_ROOTS = ["custom_id", "input", "output"] as const;
export type TemplateRoot = (typeof TEMPLATE_ROOTS)[number];

export interface Placeholder {
  readonly root: TemplateRoot;
  /** The path below the root. */
  readonly path: JsonPath;
  /** The path as the template has it. */
  readonly text: string;
}

/** A piece of the body: bytes as they are, or the value of a placeholder. */
type Part = Buffer | { readonly placeholder: number; readonly isText: boolean };

/** The value of a placeholder: the extent of a JSON value. */
export type Found = { readonly bytes: Buffer; readonly extent: Extent } | null;

export interface Template {
  /** Each placeholder once. */
  readonly placeholders: readonly Placeholder[];
  readonly parts: readonly Part[];
}

/** The body of a line in pieces, or why there is none. */
export type Filled =
  | { readonly ok: true; readonly pieces: readonly Piece[]; readonly minBytes: number }
  | { readonly ok: false; readonly missing: Placeholder; readonly isNull: boolean };

/** Bytes as they are, or the bytes of a JSON value that become text within a string. */
export interface Piece {
  readonly bytes: Buffer;
  readonly isEscaped: boolean;
}

class TemplateProblem extends Error {}

/** Parses the template that a client sent; returns what is wrong with it as a text. */
export function parseTemplate(template: unknown): Template | string {
  const parser = new TemplateParser();
  try {
    parser.addValue(template, 1);
  } catch (problem) {
    if (problem instanceof TemplateProblem) return problem.message;
    throw problem;
  }
  // This comes after the depth was checked: JSON.stringify recurses.
  if (Buffer.byteLength(JSON.stringify(template)) > MAX_TEMPLATE_BYTES) {
    return `longer than ${MAX_TEMPLATE_BYTES} bytes`;
  }
  return parser.finish();
}

const OPENING = "{{";
/** The placeholder for two braces as they are. */
const BRACES = "'{{'";

class TemplateParser {
  readonly #placeholders = new Map<string, number>();
  readonly #found: Placeholder[] = [];
  readonly #parts: Part[] = [];
  #json = "";

  addValue(value: unknown, depth: number): void {
    if (depth > MAX_DEPTH) throw new TemplateProblem(`nested deeper than ${MAX_DEPTH} levels`);
    if (typeof value === "string") this.#addString(value);
    else if (Array.isArray(value)) this.#addList(value, depth);
    else if (typeof value === "object" && value !== null) this.#addObject(value, depth);
    else if (value === Number.POSITIVE_INFINITY || value === Number.NEGATIVE_INFINITY) {
      // As JSON it would become null.
      throw new TemplateProblem("a number is too large");
    } else this.#json += JSON.stringify(value);
  }

  finish(): Template {
    this.#flush();
    return { placeholders: this.#found, parts: this.#parts };
  }

  #addList(list: readonly unknown[], depth: number): void {
    this.#json += "[";
    list.forEach((element, i) => {
      if (i > 0) this.#json += ",";
      this.addValue(element, depth + 1);
    });
    this.#json += "]";
  }

  #addObject(object: object, depth: number): void {
    this.#json += "{";
    Object.entries(object).forEach(([key, value], i) => {
      if (key.includes(OPENING)) {
        throw new TemplateProblem("a key has a placeholder; only values may have one");
      }
      this.#json += `${i > 0 ? "," : ""}${JSON.stringify(key)}:`;
      this.addValue(value, depth + 1);
    });
    this.#json += "}";
  }

  #addString(text: string): void {
    const pieces = splitText(text);
    const [only] = pieces;
    if (pieces.length === 1 && typeof only === "object") {
      this.#addPlaceholder(only, false);
      return;
    }
    this.#json += '"';
    for (const piece of pieces) {
      if (typeof piece === "string") this.#json += JSON.stringify(piece).slice(1, -1);
      else this.#addPlaceholder(piece, true);
    }
    this.#json += '"';
  }

  #addPlaceholder(placeholder: Placeholder, isText: boolean): void {
    this.#flush();
    const key = placeholder.text;
    const known = this.#placeholders.get(key);
    const number = known ?? this.#found.push(placeholder) - 1;
    this.#placeholders.set(key, number);
    this.#parts.push({ placeholder: number, isText });
  }

  #flush(): void {
    if (this.#json !== "") this.#parts.push(Buffer.from(this.#json));
    this.#json = "";
  }
}

/** Splits a string of the template into text and placeholders. */
function splitText(text: string): (string | Placeholder)[] {
  const pieces: (string | Placeholder)[] = [];
  let literal = "";
  let at = 0;
  for (;;) {
    const opening = text.indexOf(OPENING, at);
    if (opening === -1) break;
    const closing = text.indexOf("}}", opening);
    if (closing === -1) {
      throw new TemplateProblem("'{{' without '}}'; two braces as they are: {{'{{'}}");
    }
    literal += text.slice(at, opening);
    const inner = text.slice(opening + OPENING.length, closing).trim();
    if (inner === BRACES) literal += OPENING;
    else {
      if (literal !== "") pieces.push(literal);
      literal = "";
      pieces.push(placeholderOf(inner));
    }
    at = closing + 2;
  }
  literal += text.slice(at);
  if (literal !== "") pieces.push(literal);
  return pieces;
}

const MAX_SHOWN_CHARACTERS = 100;

function placeholderOf(text: string): Placeholder {
  const [root = "", ...path] = text.split(".");
  const isKnown = (TEMPLATE_ROOTS as readonly string[]).includes(root);
  const isPath = path.every((key) => key !== "" && !/[{}]/.test(key));
  if (!isKnown || !isPath || (root === "custom_id" && path.length > 0)) {
    const shown = text.slice(0, MAX_SHOWN_CHARACTERS).toWellFormed();
    throw new TemplateProblem(
      `unknown placeholder '{{${shown}}}'; there are {{custom_id}}, {{input.…}} and {{output.…}}`,
    );
  }
  return { root: root as TemplateRoot, path, text };
}

/** Fills in the values of the placeholders, which come in the order of {@link Template.placeholders}. */
export function fillTemplate(template: Template, values: readonly Found[]): Filled {
  const pieces: Piece[] = [];
  let minBytes = 0;
  for (const part of template.parts) {
    const piece = Buffer.isBuffer(part)
      ? { bytes: part, isEscaped: false }
      : pieceOf(values[part.placeholder] ?? null, part.isText);
    if (piece === "missing" || piece === "null") {
      const { placeholder } = part as { placeholder: number };
      const missing = template.placeholders[placeholder] as Placeholder;
      return { ok: false, missing, isNull: piece === "null" };
    }
    pieces.push(piece);
    minBytes += piece.bytes.length;
  }
  return { ok: true, pieces, minBytes };
}

const NULL_BYTE = 0x6e;

/** The word "null" in a prompt would be a silent mistake, so null is no text. */
function pieceOf(found: Found, isText: boolean): Piece | "missing" | "null" {
  if (found === null) return "missing";
  const { bytes, extent } = found;
  const { start, end } = extent;
  if (!isText) return { bytes: bytes.subarray(start, end), isEscaped: false };
  if (bytes[start] === NULL_BYTE) return "null";
  // The text of a string is spelled for JSON already.
  if (isStringAt(bytes, start)) {
    return { bytes: bytes.subarray(start + 1, end - 1), isEscaped: false };
  }
  const isEscaped = isObjectAt(bytes, start) || isArrayAt(bytes, start);
  return { bytes: bytes.subarray(start, end), isEscaped };
}

const SPACE = 0x20;

/** Spells valid JSON as the text within a JSON string. Line breaks and tabs, which stand between tokens, become spaces. */
export function escapeJson(json: Buffer): Buffer {
  let more = 0;
  for (const byte of json) if (byte === QUOTE || byte === BACKSLASH) more++;
  const escaped = Buffer.allocUnsafe(json.length + more);
  let at = 0;
  for (const byte of json) {
    if (byte === QUOTE || byte === BACKSLASH) escaped[at++] = BACKSLASH;
    escaped[at++] = Math.max(byte, SPACE);
  }
  return escaped;
}
