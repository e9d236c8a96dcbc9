/**
 * Reads the list of models that a server reports, `{"data": [{"id", "aliases"}]}`, and skips parts of any other shape. A list
 * may have 2 MiB, which `JSON.parse` takes a quarter of a second for where it is nothing but brackets, so it is read in steps.
 */

import { read, STEP_BYTES } from "../resources/time-slice.ts";
import { decodeString, indexOfKey, isArrayAt, isStringAt, quoted } from "../text/json.ts";
import { JsonPaths } from "../text/json-paths.ts";
import { JsonScan } from "../text/json-scan.ts";
import type { Reading } from "../text/reading.ts";

export interface ListedNames {
  readonly ids: readonly string[];
  readonly aliases: readonly string[];
}

/** A longer list is none. What compares names with it takes some 20 ms for as many. */
const MAX_NAMES = 50_000;
const KEYS = quoted(["id", "aliases"]);

/** Resolves to null for a list with too many names. */
export async function listedNames(body: Buffer): Promise<ListedNames | null> {
  const [data = null] = await read(new JsonPaths([["data"]]), body);
  if (data === null || !isArrayAt(body, data.start)) return { ids: [], aliases: [] };
  return read(new NamesReading(), body.subarray(data.start, data.end));
}

class NamesReading implements Reading<ListedNames | null> {
  readonly #ids: string[] = [];
  readonly #aliases: string[] = [];
  #list: Buffer = Buffer.alloc(0);
  readonly #scan = new JsonScan(2, ({ depth, keyStart, keyEnd, start, end }) => {
    if (depth !== 2 || this.#isFull) return;
    const list = this.#list;
    const key = indexOfKey(list, keyStart, keyEnd, KEYS);
    if (key === 0 && isStringAt(list, start)) this.#ids.push(decodeString(list, { start, end }));
    // No model has so many that they would take a step of their own.
    if (key === 1 && isArrayAt(list, start) && end - start <= STEP_BYTES) {
      this.#aliases.push(...textsIn(list.toString("utf8", start, end)));
    }
  });

  begin(list: Buffer): void {
    this.#list = list;
    this.#scan.begin(list);
  }

  advance(byteCount: number): boolean {
    return this.#scan.advance(byteCount);
  }

  result(): ListedNames | null {
    return this.#isFull ? null : { ids: this.#ids, aliases: this.#aliases };
  }

  get #isFull(): boolean {
    return this.#ids.length + this.#aliases.length > MAX_NAMES;
  }
}

const textsIn = (json: string): string[] =>
  (JSON.parse(json) as unknown[]).filter((value) => typeof value === "string");
