/**
 * A request body on its way to a target that wants it a little different: another model name, fields that its
 * line leaves out, fields that the operator insists on. What is not touched stays byte for byte as the client wrote it.
 *
 * Only the fields at the top are looked at. Of several equal keys the last one counts, so a field that is
 * replaced is replaced wherever it stands. A body that wants nothing is not read at all, and one that wants
 * another model is read once.
 */
import { decodeString, hasEscape, isSame, skipObject, skipSpace, skipValue } from "./json.ts";

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
  readonly text: Buffer;
}

/** Where a value stands that another one takes the place of. */
interface Edit {
  readonly start: number;
  readonly end: number;
  readonly text: Buffer;
}

const INVALID = -1;
const MODEL_KEY = Buffer.from('"model"');

/** The body is known to be one valid JSON object. Returns the same buffer when nothing has to change. */
export function rewriteBody(body: Buffer, { model, defaults, extra }: BodyRules): Buffer {
  if (model === null && defaults.size === 0 && extra.size === 0) return body;
  const forced = [...modelField(model), ...fieldsOf(extra)];
  const fields = defaults.size === 0 ? forced : [...forced, ...fieldsOf(defaults)];
  const { edits, seen, end } = findFields(body, fields, forced.length);
  const missing = fields.filter((field, i) => !seen[i] && indexOfName(fields, field.name) === i);
  if (edits.length === 0 && missing.length === 0) return body;
  return withEdits(body, missing.length === 0 ? edits : [...edits, appending(missing, end)]);
}

function modelField(model: string | null): Field[] {
  if (model === null) return [];
  return [{ name: "model", key: MODEL_KEY, text: Buffer.from(JSON.stringify(model)) }];
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
    text: Buffer.from(text),
  }));
  knownFields.set(texts, fields);
  return fields;
}

interface Found {
  /** For the first `forcedCount` fields, where the body says something else. */
  readonly edits: readonly Edit[];
  /** For each field, whether the body has it. */
  readonly seen: readonly boolean[];
  /** Where another member can be put in, and whether it is the first one. */
  readonly end: { readonly at: number; readonly isEmpty: boolean };
}

function findFields(body: Buffer, fields: readonly Field[], forcedCount: number): Found {
  const edits: Edit[] = [];
  const seen: boolean[] = [];
  const from = skipSpace(body, 0, body.length);
  let at = from + 1;
  const after = skipObject(body, from, body.length, (keyStart, keyEnd, start) => {
    const end = skipValue(body, start, body.length);
    const index = indexOfField(body, { keyStart, keyEnd }, fields);
    if (index !== INVALID) {
      seen[index] = true;
      const { text } = fields[index] as Field;
      if (index < forcedCount && !isSame(body, start, end, text)) edits.push({ start, end, text });
    }
    at = end;
    return end;
  });
  if (after === INVALID) throw new Error("a body that is not a JSON object is on its way upstream");
  return { edits, seen, end: { at, isEmpty: at === from + 1 } };
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
  if (!hasEscape(body, keyStart, keyEnd)) return INVALID;
  return indexOfName(fields, decodeString(body, { start: keyStart, end: keyEnd }));
}

const indexOfName = (fields: readonly Field[], name: string) =>
  fields.findIndex((field) => field.name === name);

/** One piece of text with all the members that a body lacks. */
function appending(missing: readonly Field[], { at, isEmpty }: Found["end"]): Edit {
  const members = missing.flatMap(({ key, text }) => [",", key, ":", text]);
  const text = Buffer.concat(members.slice(isEmpty ? 1 : 0).map((part) => Buffer.from(part)));
  return { start: at, end: at, text };
}

function withEdits(body: Buffer, edits: readonly Edit[]): Buffer {
  const growth = edits.reduce((sum, { start, end, text }) => sum + text.length - (end - start), 0);
  const bytes = Buffer.allocUnsafe(body.length + growth);
  let read = 0;
  let written = 0;
  for (const { start, end, text } of edits) {
    written += body.copy(bytes, written, read, start);
    written += text.copy(bytes, written);
    read = end;
  }
  body.copy(bytes, written, read);
  return bytes;
}
