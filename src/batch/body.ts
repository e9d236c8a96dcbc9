/**
 * Rewrites a request body for a target: another model name, fields that the line leaves out, fields that the operator
 * forces. Targets differ in what they accept, and clients must not have to know it. Every byte that the rules do not
 * touch stays as the client wrote it.
 *
 * The rules apply to the fields at the top of the body only. Servers differ in which of several equal keys they take, the
 * first or the last, and some take keys in any case. So a forced value replaces every one of them: the first one, and up to
 * a thousand of the last. A body without rules is not read at all; a body with rules is read once.
 */
import { decodeString, isInOtherCase, isObjectAt, isSame, isSpelled } from "../text/json.ts";
import { JsonScan, type Member } from "../text/json-scan.ts";
import { skipSpace } from "../text/json-tokens.ts";
import type { Reading } from "../text/reading.ts";

/** The JSON texts of values, by the name of their field. */
export type FieldTexts = ReadonlyMap<string, string>;

export interface BodyRules {
  /** The new value of `model`; null keeps the value of the client. */
  readonly model: string | null;
  /** Fields for bodies that lack them. A body with the value null has the field. */
  readonly defaults: FieldTexts;
  /** Fields that replace the value in the body. */
  readonly extra: FieldTexts;
}

interface Field {
  readonly name: string;
  /** The key as JSON, in its spelling without unnecessary escapes. */
  readonly key: Buffer;
  /** Returns whether a name is ASCII and JSON writes it without escapes. */
  readonly isPlain: boolean;
  readonly text: Buffer;
}

/** A replacement of the value at `[start, end)`. */
interface Edit {
  readonly start: number;
  readonly end: number;
  readonly text: Buffer;
}

const NOT_FOUND = -1;
const MODEL_KEY = Buffer.from('"model"');
/** A body may repeat a key a million times. No server takes one in the middle, so those may stay as they are. */
const MAX_EDITS = 1_000;
/** A client may escape each UTF-16 unit of a name, which takes six bytes. */
const SPELLED_BYTES_PER_UNIT = 6;
/** Matches a name that JSON writes without escapes. */
const PLAIN = /^[ !#-[\]-~]*$/;

/** Turns a body into the body to send. The caller has checked that the body is one valid JSON object. */
export class BodyRewriting implements Reading<Buffer> {
  readonly #fields: readonly Field[];
  /** The first fields of the list, as many as this, replace the value in the body. The rest are defaults. */
  readonly #forcedCount: number;
  readonly #scan = new JsonScan(1, (member) => this.#take(member));
  #body: Buffer = Buffer.alloc(0);
  /**
   * The edits of each field, because the repetitions of one must leave those of another alone. Behind them are the edits of
   * the same fields in another case.
   */
  #edits: Edit[][] = [];
  #seen: boolean[] = [];
  /** The place for another member, and whether the object is empty so far. */
  #end = { at: 0, isEmpty: true };
  /** The copy in progress; null until the body is read. */
  #copy: EditedCopy | null = null;

  constructor({ model, defaults, extra }: BodyRules) {
    const forced = [...modelField(model), ...fieldsOf(extra)];
    this.#fields = defaults.size === 0 ? forced : [...forced, ...fieldsOf(defaults)];
    this.#forcedCount = forced.length;
  }

  begin(body: Buffer): void {
    this.#body = body;
    this.#edits = [];
    this.#seen = [];
    this.#end = { at: skipSpace(body, 0, body.length) + 1, isEmpty: true };
    this.#copy = null;
    this.#scan.begin(body);
  }

  advance(byteCount: number): boolean {
    if (this.#copy !== null) return this.#copy.advance(byteCount);
    if (!this.#scan.advance(byteCount)) return false;
    const body = this.#body;
    if (!this.#scan.isValid || !isObjectAt(body, skipSpace(body, 0, body.length))) {
      throw new Error("a body that is not a JSON object is on its way upstream");
    }
    this.#copy = new EditedCopy(body, this.#allEdits());
    return this.#copy.advance(byteCount);
  }

  /** Returns the same buffer when the rules change nothing. */
  result(): Buffer {
    return this.#copy?.result ?? this.#body;
  }

  #take(member: Member): void {
    const index = indexOfField(this.#body, member, this.#fields);
    if (index === NOT_FOUND) this.#takeInOtherCase(member);
    else {
      this.#seen[index] = true;
      if (index < this.#forcedCount) this.#force(index, this.#fields[index] as Field, member);
    }
    this.#end = { at: member.end, isEmpty: false };
  }

  #takeInOtherCase(member: Member): void {
    const key = { start: member.keyStart, end: member.keyEnd };
    for (let i = 0; i < this.#forcedCount; i++) {
      const field = this.#fields[i] as Field;
      if (field.isPlain && isInOtherCase(this.#body, key, field.name)) {
        this.#force(this.#fields.length + i, field, member);
        return;
      }
    }
  }

  #force(place: number, { text }: Field, { start, end }: Member): void {
    if (isSame(this.#body, start, end, text)) return;
    const edits = this.#edits[place] ?? [];
    this.#edits[place] = edits;
    edits.push({ start, end, text });
    if (edits.length === 2 * MAX_EDITS) edits.splice(1, MAX_EDITS);
  }

  #allEdits(): readonly Edit[] {
    const fields = this.#fields;
    const missing = fields.filter((field, i) => {
      return !this.#seen[i] && indexOfName(fields, field.name) === i;
    });
    const edits = this.#edits.flat().sort((a, b) => a.start - b.start);
    return missing.length === 0 ? edits : [...edits, appending(missing, this.#end)];
  }
}

/** Returns whether the rules make it necessary to read the body. */
export const isRewritten = ({ model, defaults, extra }: BodyRules): boolean =>
  model !== null || defaults.size > 0 || extra.size > 0;

function modelField(model: string | null): Field[] {
  if (model === null) return [];
  return [
    { name: "model", key: MODEL_KEY, isPlain: true, text: Buffer.from(JSON.stringify(model)) },
  ];
}

/** Fields by their texts: the same texts come with every request to a target. */
const knownFields = new WeakMap<FieldTexts, readonly Field[]>();

function fieldsOf(texts: FieldTexts): readonly Field[] {
  if (texts.size === 0) return [];
  const known = knownFields.get(texts);
  if (known !== undefined) return known;
  const fields = Array.from(texts, ([name, text]) => ({
    name,
    key: Buffer.from(JSON.stringify(name)),
    isPlain: PLAIN.test(name),
    text: Buffer.from(text),
  }));
  knownFields.set(texts, fields);
  return fields;
}

interface Key {
  readonly keyStart: number;
  readonly keyEnd: number;
}

/** Returns the index of the field that the key names; the first one when two fields have the same name. */
function indexOfField(body: Buffer, { keyStart, keyEnd }: Key, fields: readonly Field[]): number {
  for (let i = 0; i < fields.length; i++) {
    if (isSame(body, keyStart, keyEnd, (fields[i] as Field).key)) return i;
  }
  for (let i = 0; i < fields.length; i++) {
    if (isFieldSpelled(body, { keyStart, keyEnd }, fields[i] as Field)) return i;
  }
  return NOT_FOUND;
}

function isFieldSpelled(body: Buffer, { keyStart, keyEnd }: Key, field: Field): boolean {
  const { name, key, isPlain } = field;
  if (isPlain) return isSpelled(body, keyStart, keyEnd, key);
  if (keyEnd - keyStart > name.length * SPELLED_BYTES_PER_UNIT + 2) return false;
  return decodeString(body, { start: keyStart, end: keyEnd }) === name;
}

const indexOfName = (fields: readonly Field[], name: string) =>
  fields.findIndex((field) => field.name === name);

/** One edit that adds all missing members. */
function appending(
  missing: readonly Field[],
  { at, isEmpty }: { readonly at: number; readonly isEmpty: boolean },
): Edit {
  const members = missing.flatMap(({ key, text }) => [",", key, ":", text]);
  const text = Buffer.concat(members.slice(isEmpty ? 1 : 0).map((part) => Buffer.from(part)));
  return { start: at, end: at, text };
}

/** A copy of a body with its edits. It proceeds in steps, so that a long body does not block the event loop. */
class EditedCopy {
  readonly #body: Buffer;
  readonly #edits: readonly Edit[];
  readonly result: Buffer;
  #editCount = 0;
  #read = 0;
  #written = 0;

  constructor(body: Buffer, edits: readonly Edit[]) {
    this.#body = body;
    this.#edits = edits;
    const growth = edits.reduce((sum, { start, end, text }) => sum + text.length - end + start, 0);
    this.result = edits.length === 0 ? body : Buffer.allocUnsafe(body.length + growth);
  }

  advance(byteCount: number): boolean {
    if (this.#edits.length === 0) return true;
    const stop = this.#written + byteCount;
    for (let edit = this.#edits[this.#editCount]; edit; edit = this.#edits[this.#editCount]) {
      if (!this.#copyTo(edit.start, stop)) return false;
      this.#written += edit.text.copy(this.result, this.#written);
      this.#read = edit.end;
      this.#editCount++;
    }
    return this.#copyTo(this.#body.length, stop);
  }

  /** Returns false when more bytes remain before `end` than this step may write. */
  #copyTo(end: number, stop: number): boolean {
    const readEnd = Math.min(end, this.#read + Math.max(0, stop - this.#written));
    this.#written += this.#body.copy(this.result, this.#written, this.#read, readEnd);
    this.#read = readEnd;
    return readEnd === end;
  }
}
