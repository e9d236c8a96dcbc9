/**
 * Finds members of JSON objects as runs of bytes. Nothing is built of values that no column shows, so a hostile answer
 * of 64 MB costs little more memory than its bytes.
 */
import { decodeString, indexOfKey, isStringAt, quoted } from "../text/json.ts";
import { JsonScan, type Member } from "../text/json-scan.ts";
import { CLOSE_OBJECT, skipSpace } from "../text/json-tokens.ts";

type Found<Name extends string> = Partial<Record<Name, Buffer>>;

const NOTHING = Buffer.alloc(0);

/** Finds members with some names. The last of several equal keys counts, as it does for JSON parsers. */
export class MemberFinder<Name extends string> {
  readonly #names: readonly Name[];
  readonly #keys: readonly Buffer[];
  readonly #inObject = new JsonScan(1, (member) => this.#take(member, 1));
  readonly #inArray = new JsonScan(2, (member) => this.#take(member, 2));
  #json: Buffer = NOTHING;
  #found: Found<Name> = {};
  #onObject: (found: Found<Name>) => void = () => {};

  constructor(names: readonly Name[]) {
    this.#names = names;
    this.#keys = quoted(names);
  }

  /** Returns the members of an object; none for another value, and null for bytes that are not JSON. */
  in(json: Buffer): Found<Name> | null {
    this.#onObject = () => {};
    return this.#run(this.#inObject, json) ? this.#found : null;
  }

  /** Gives the members of each object in an array to `take`. An object without any of them may be left out. */
  inEach(json: Buffer, take: (found: Found<Name>) => void): void {
    this.#onObject = take;
    this.#run(this.#inArray, json);
  }

  #run(scan: JsonScan, json: Buffer): boolean {
    this.#json = json;
    this.#found = {};
    scan.begin(json);
    scan.advance(json.length);
    return scan.isValid === true;
  }

  #take({ depth, keyStart, keyEnd, start, end }: Member, wantedDepth: 1 | 2): void {
    if (depth !== wantedDepth) return;
    const json = this.#json;
    const key = indexOfKey(json, keyStart, keyEnd, this.#keys);
    if (key !== -1) this.#found[this.#names[key] as Name] = json.subarray(start, end);
    if (depth === 1 || json[skipSpace(json, end, json.length)] !== CLOSE_OBJECT) return;
    this.#onObject(this.#found);
    this.#found = {};
  }
}

/** Returns the string that the bytes spell; null for another value. */
export const stringIn = (json: Buffer | undefined): string | null =>
  json !== undefined && isStringAt(json, 0)
    ? decodeString(json, { start: 0, end: json.length })
    : null;

/** Returns a whole number; null for another value. */
export function integerIn(json: Buffer | undefined): number | null {
  const text = json === undefined || json.length > MAX_DIGITS ? "" : json.toString("latin1");
  return /^-?\d+$/.test(text) ? Number(text) : null;
}
/** Every number of so many signs is exact. */
const MAX_DIGITS = 15;

/** Returns the JSON itself; null where the value is missing or null. */
export const jsonIn = (json: Buffer | undefined): string | null =>
  isPresent(json) ? json.toString() : null;

export const isPresent = (json: Buffer | undefined): json is Buffer =>
  json !== undefined && !json.equals(NULL);
const NULL = Buffer.from("null");
