/**
 * Finds which parameters all requests of a batch have in common, and which ones vary. A parameter is a member of the body
 * that is neither the model nor content: no prompt, no message and no document of a client may get into a run record, and no
 * credential.
 *
 * Nearly every line has the parameters of the line before it, in the same order and the same bytes, so a line mostly
 * costs a comparison of bytes. An object that differs is compared member by member, at every depth.
 */
import { createHash } from "node:crypto";
import { isJsonObject } from "../contract/json-object.ts";
import { decodeString, isObjectAt, isSame } from "../text/json.ts";
import type { ParsedLine } from "./line.ts";
import type { ParameterSummary } from "./run-summary.ts";
import { withoutSecrets } from "./secret-members.ts";

/** What the model is asked about, at all endpoints. */
const CONTENT = new Set([
  "messages",
  "input",
  "prompt",
  "instructions",
  "suffix",
  "prediction",
  "system",
  "image",
  "images",
  "mask",
  "documents",
  "query",
  "conversation",
  // Servers beside OpenAI have these.
  "inputs",
  "prompts",
  "texts",
  "content",
  "contents",
  "passages",
  "system_prompt",
]);

/** The limits of a summary: the parameters, the bytes of a value, and of all values together. */
const MAX_PARAMETERS = 100;
const MAX_SHOWN_BYTES = 2 * 1024;
const MAX_COMPARED_BYTES = 1024 * 1024;
const MAX_NAME_BYTES = 256;
const MAX_VARYING = 200;
/** Deeper objects are compared as a whole. */
const MAX_DEPTH = 8;

type JsonObject = Readonly<Record<string, unknown>>;

interface Parameter {
  readonly name: string;
  /** The value that all lines had so far, as it was spelled first; null when it varies, or was not compared. */
  bytes: Buffer | null;
  /** The members that an object has in all lines so far; null while all bytes are the same. */
  common: JsonObject | null;
  /** The last line that had it. */
  line: number;
}

export class Parameters {
  readonly #parameters = new Map<string, Parameter>();
  readonly #all: Parameter[] = [];
  /** The parameters in the order of the first line, and null for a member that is none. */
  readonly #order: (Parameter | null)[] = [];
  readonly #keys: Buffer[] = [];
  readonly #varying = new Set<string>();
  readonly #leftOut = new Set<string>();
  #comparedBytes = 0;
  #line = 0;

  /** Adds a line that was accepted. */
  add(bytes: Buffer, { members }: Pick<ParsedLine, "members">): void {
    this.#line++;
    for (let at = 0; at < members.length; at += 4) {
      const parameter = this.#find(bytes, members, at);
      if (parameter === null) continue;
      const start = members[at + 2] as number;
      const end = members[at + 3] as number;
      if (parameter.line === 0) this.#begin(parameter, bytes.subarray(start, end));
      else if (parameter.bytes !== null && !isSame(bytes, start, end, parameter.bytes)) {
        this.#compare(parameter, bytes.subarray(start, end));
      }
      parameter.line = this.#line;
    }
    for (const parameter of this.#all) {
      if (parameter.line !== this.#line && parameter.bytes !== null) this.#vary(parameter);
    }
  }

  finish(): ParameterSummary {
    const common: [string, unknown][] = [];
    const large: { name: string; bytes: number; sha256: string }[] = [];
    for (const { name, bytes, common: object } of this.#all) {
      if (bytes === null) continue;
      if (bytes.length <= MAX_SHOWN_BYTES) {
        common.push([name, withoutSecrets(name, object ?? parsed(bytes))]);
      } else large.push({ name, bytes: bytes.length, sha256: sha256Of(bytes) });
    }
    const varying = [...this.#varying].filter((name) => !this.#variesAbove(name)).sort();
    return {
      common: Object.fromEntries(common.sort(byName)),
      large: large.sort((a, b) => (a.name < b.name ? -1 : 1)),
      varying: varying.slice(0, MAX_VARYING),
      left_out: this.#leftOut.size + Math.max(0, varying.length - MAX_VARYING),
    };
  }

  /** Returns whether a parameter varies as a whole, so that a member of it says nothing more. */
  #variesAbove(name: string): boolean {
    for (let at = name.lastIndexOf("."); at > 0; at = name.lastIndexOf(".", at - 1)) {
      if (this.#varying.has(name.slice(0, at))) return true;
    }
    return false;
  }

  /** Returns null for a member that is no parameter, or that there is no room for. */
  #find(bytes: Buffer, members: readonly number[], at: number): Parameter | null {
    const start = members[at] as number;
    const end = members[at + 1] as number;
    const place = at >> 2;
    const expected = this.#keys[place];
    if (expected !== undefined && isSame(bytes, start, end, expected))
      return this.#order[place] ?? null;
    const name = end - start > MAX_NAME_BYTES ? null : decodeString(bytes, { start, end });
    const parameter = name === null ? null : this.#named(name);
    if (this.#line === 1) {
      this.#keys[place] = Buffer.from(bytes.subarray(start, end));
      this.#order[place] = parameter;
    }
    return parameter;
  }

  #named(name: string): Parameter | null {
    if (name === "model" || CONTENT.has(name)) return null;
    const known = this.#parameters.get(name);
    if (known !== undefined) return known;
    if (this.#parameters.size === MAX_PARAMETERS) {
      if (this.#leftOut.size < MAX_PARAMETERS) this.#leftOut.add(name);
      return null;
    }
    const parameter = { name, bytes: null, common: null, line: 0 };
    this.#parameters.set(name, parameter);
    this.#all.push(parameter);
    return parameter;
  }

  #begin(parameter: Parameter, value: Buffer): void {
    // The lines before did not have it.
    if (this.#line > 1) this.#varying.add(parameter.name);
    else if (this.#comparedBytes + value.length > MAX_COMPARED_BYTES)
      this.#leftOut.add(parameter.name);
    else {
      this.#comparedBytes += value.length;
      parameter.bytes = Buffer.from(value);
    }
  }

  #compare(parameter: Parameter, value: Buffer): void {
    const first = parameter.bytes;
    if (first === null) return;
    const isObject = isObjectAt(first, 0) && isObjectAt(value, 0);
    const isShort = Math.max(first.length, value.length) <= MAX_SHOWN_BYTES;
    if (!isShort) {
      this.#vary(parameter);
      return;
    }
    const [before, after] = [parameter.common ?? parsed(first), parsed(value)];
    if (!isObject) {
      if (!isEqual(before, after)) this.#vary(parameter);
      return;
    }
    parameter.common = this.#shared(parameter.name, before as JsonObject, after as JsonObject, 1);
    if (Object.keys(parameter.common).length === 0) parameter.bytes = null;
  }

  /** Returns the members that both objects have, and notes the names of the others. */
  #shared(path: string, before: JsonObject, after: JsonObject, depth: number): JsonObject {
    const shared: [string, unknown][] = [];
    for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) {
      const [one, other] = [memberOf(before, name), memberOf(after, name)];
      if (isEqual(one, other)) shared.push([name, one]);
      else if (isJsonObject(one) && isJsonObject(other) && depth < MAX_DEPTH) {
        const inner = this.#shared(`${path}.${name}`, one, other, depth + 1);
        if (Object.keys(inner).length > 0) shared.push([name, inner]);
      } else if (this.#varying.size < 2 * MAX_VARYING) this.#varying.add(`${path}.${name}`);
    }
    return Object.fromEntries(shared);
  }

  #vary(parameter: Parameter): void {
    parameter.bytes = null;
    parameter.common = null;
    this.#varying.add(parameter.name);
  }
}

const byName = ([a]: readonly [string, unknown], [b]: readonly [string, unknown]) =>
  a < b ? -1 : 1;
const sha256Of = (bytes: Buffer) => createHash("sha256").update(bytes).digest("hex");
const parsed = (json: Buffer): unknown => JSON.parse(json.toString());

const memberOf = (object: JsonObject, name: string): unknown =>
  Object.hasOwn(object, name) ? object[name] : undefined;

/** Compares values of JSON. The order of members means nothing. */
function isEqual(a: unknown, b: unknown): boolean {
  if (a === b) return true;
  if (Array.isArray(a) && Array.isArray(b)) {
    return a.length === b.length && a.every((each, i) => isEqual(each, b[i]));
  }
  if (!isJsonObject(a) || !isJsonObject(b)) return false;
  const names = Object.keys(a);
  return (
    names.length === Object.keys(b).length &&
    names.every((name) => Object.hasOwn(b, name) && isEqual(a[name], b[name]))
  );
}
