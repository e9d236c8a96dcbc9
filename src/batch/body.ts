/**
 * A request body on its way to a target that wants it a little different: another model name, fields that its
 * line leaves out, fields that the operator insists on. What is not touched stays byte for byte as the client wrote it.
 *
 * Only the fields at the top are looked at. Of several equal keys the last one counts, so a field that is
 * replaced is replaced wherever it stands, if that is not in a thousand places. A body that wants nothing is not read at
 * all, and one that wants another model is read once.
 */
import { decodeString, isObjectAt, isSame, isSpelled } from "./json.ts";
import { JsonScan, type Member, skipSpace } from "./json-scan.ts";
import type { Reading } from "./reading.ts";

/** JSON texts of values, by the name of their field. */
export type FieldTexts = ReadonlyMap<string, string>;

export interface BodyRules {
  /** What `model` is to say; null leaves it as it is. */
  readonly model: string | null;
  /** Fields for bodies that do not have them. A field that is null is one that they have. */
  readonly defaults: FieldTexts;
  /** Fields that replace whatever the body says. */
  readonly extra: FieldTexts;
}

interface Field {
  readonly name: string;
  /** The key, unless the body writes it with escapes. */
  readonly key: Buffer;
  /** Whether it is ASCII without need for escapes. */
  readonly isPlain: boolean;
  readonly text: Buffer;
}

/** Where a value stands that another one takes the place of. */
interface Edit {
  readonly start: number;
  readonly end: number;
  readonly text: Buffer;
}

const NOT_FOUND = -1;
const MODEL_KEY = Buffer.from('"model"');
/** A body may have a million equal keys, of which the last one counts: the first ones stay as they are. */
const MAX_EDITS = 1_000;
/** Each unit of a name, in UTF-16, may be escaped. */
const SPELLED_BYTES_PER_UNIT = 6;
/** What stands in a key as it is. */
const PLAIN = /^[ !#-[\]-~]*$/;

/** Reads a body, which is known to be one valid JSON object, into the one to send. */
export class BodyRewriting implements Reading<Buffer> {
  readonly #fields: readonly Field[];
  /** So many of them replace what the body says; the others are for bodies that do not have them. */
  readonly #forcedCount: number;
  readonly #scan = new JsonScan(1, (member) => this.#take(member));
  #body: Buffer = Buffer.alloc(0);
  #edits: Edit[] = [];
  #seen: boolean[] = [];
  /** Where another member can be put in, and whether it is the first one. */
  #end = { at: 0, isEmpty: true };
  /** Null until the body is read. */
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

  /** The same buffer when nothing has to change. */
  result(): Buffer {
    return this.#copy?.result ?? this.#body;
  }

  #take({ keyStart, keyEnd, start, end }: Member): void {
    const body = this.#body;
    const index = indexOfField(body, { keyStart, keyEnd }, this.#fields);
    if (index !== NOT_FOUND) {
      this.#seen[index] = true;
      const { text } = this.#fields[index] as Field;
      const isForced = index < this.#forcedCount;
      if (isForced && !isSame(body, start, end, text)) this.#edit({ start, end, text });
    }
    this.#end = { at: end, isEmpty: false };
  }

  #edit(edit: Edit): void {
    this.#edits.push(edit);
    if (this.#edits.length === 2 * MAX_EDITS) this.#edits.splice(0, MAX_EDITS);
  }

  #allEdits(): readonly Edit[] {
    const fields = this.#fields;
    const missing = fields.filter((field, i) => {
      return !this.#seen[i] && indexOfName(fields, field.name) === i;
    });
    return missing.length === 0 ? this.#edits : [...this.#edits, appending(missing, this.#end)];
  }
}

/** Whether a body has to be read at all. */
export const isRewritten = ({ model, defaults, extra }: BodyRules): boolean =>
  model !== null || defaults.size > 0 || extra.size > 0;

function modelField(model: string | null): Field[] {
  if (model === null) return [];
  return [
    { name: "model", key: MODEL_KEY, isPlain: true, text: Buffer.from(JSON.stringify(model)) },
  ];
}

/** The same texts come with every request to a target. */
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

/** Of two fields with one name, the first. */
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

/** One piece of text with all the members that a body lacks. */
function appending(
  missing: readonly Field[],
  { at, isEmpty }: { readonly at: number; readonly isEmpty: boolean },
): Edit {
  const members = missing.flatMap(({ key, text }) => [",", key, ":", text]);
  const text = Buffer.concat(members.slice(isEmpty ? 1 : 0).map((part) => Buffer.from(part)));
  return { start: at, end: at, text };
}

/** A body with its edits, copied in as many steps as it takes. */
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

  /** False when there is more before `end` than may be written now. */
  #copyTo(end: number, stop: number): boolean {
    const readEnd = Math.min(end, this.#read + Math.max(0, stop - this.#written));
    this.#written += this.#body.copy(this.result, this.#written, this.#read, readEnd);
    this.#read = readEnd;
    return readEnd === end;
  }
}
