/**
 * Reads from an answer what batchd keeps of it beside its bytes: the tokens that it reports, and the names of what has
 * made it. Every answer is also checked to be one JSON value. One pass does all of it.
 */

import { indexOfKey, isObjectAt, quoted } from "../text/json.ts";
import { JsonScan, type Member } from "../text/json-scan.ts";
import type { Reading } from "../text/reading.ts";
import { NamesReader } from "./answer-names.ts";
import { type AnswerNames, NO_USAGE, type Usage } from "./batch.ts";
import { readUsage } from "./usage.ts";

export interface AnswerFacts {
  /** Zeros for an answer that reports none. */
  readonly usage: Usage;
  readonly names: AnswerNames;
}

const KEYS = quoted(["usage", "model", "system_fingerprint"]);
const USAGE = 0;
const MODEL = 1;
const FINGERPRINT = 2;
/** A longer value is no usage of any server. */
const MAX_USAGE_BYTES = 64 * 1024;

/** The result is null for bytes that are not one JSON value. The caller checks the UTF-8. */
export class AnswerReading implements Reading<AnswerFacts | null> {
  readonly #scan = new JsonScan(1, (member) => this.#take(member));
  readonly #names = new NamesReader();
  readonly #model = { start: 0, end: 0 };
  readonly #fingerprint = { start: 0, end: 0 };
  #body: Buffer = Buffer.alloc(0);
  #usage = NO_USAGE;

  begin(body: Buffer): void {
    this.#body = body;
    this.#usage = NO_USAGE;
    this.#model.end = this.#model.start;
    this.#fingerprint.end = this.#fingerprint.start;
    this.#scan.begin(body);
  }

  advance(byteCount: number): boolean {
    return this.#scan.advance(byteCount);
  }

  result(): AnswerFacts | null {
    if (!this.#scan.isValid) return null;
    const extents = { model: this.#model, fingerprint: this.#fingerprint };
    return { usage: this.#usage, names: this.#names.read(this.#body, extents) };
  }

  #take({ keyStart, keyEnd, start, end }: Member): void {
    const body = this.#body;
    const key = indexOfKey(body, keyStart, keyEnd, KEYS);
    if (key === MODEL || key === FINGERPRINT) {
      const extent = key === MODEL ? this.#model : this.#fingerprint;
      extent.start = start;
      extent.end = end;
    } else if (key === USAGE && isObjectAt(body, start) && end - start <= MAX_USAGE_BYTES) {
      this.#usage = readUsage(JSON.parse(body.toString("utf8", start, end)));
    }
  }
}

const reader = new AnswerReading();

/** Reads a short answer in one step; see {@link AnswerReading}. */
export function factsIfJson(body: Buffer): AnswerFacts | null {
  reader.begin(body);
  reader.advance(body.length);
  return reader.result();
}
