/**
 * The names of what has made an answer: its `model` and `system_fingerprint`. They are found when the answer comes
 * (`answer-facts.ts`) and stand in the journal. A row without them there, such as one of another batch, is read again.
 */

import { decodeString, type Extent, indexOfKey, isSame, isStringAt, quoted } from "../text/json.ts";
import { JsonScan } from "../text/json-scan.ts";
import type { Reading } from "../text/reading.ts";
import type { AnswerNames } from "./batch.ts";
import { MAX_NAME_CHARACTERS, NameCounter } from "./name-counter.ts";
import { rowParts } from "./outcome.ts";
import type { ResultSummary } from "./run-summary.ts";

const NO_NAMES: AnswerNames = { model: null, fingerprint: null };
const NOTHING = Buffer.alloc(0);
/** A longer text is no name. */
const MAX_NAME_BYTES = 1024;

/** Reads one name of many answers, most of which have the same. */
class NameReader {
  #spelled: Buffer = NOTHING;
  #name = "";

  read(bytes: Buffer, { start, end }: Extent): string | null {
    if (start === end || !isStringAt(bytes, start) || end - start > MAX_NAME_BYTES) return null;
    if (!isSame(bytes, start, end, this.#spelled)) {
      this.#spelled = Buffer.from(bytes.subarray(start, end));
      this.#name = decodeString(bytes, { start, end }).slice(0, MAX_NAME_CHARACTERS);
    }
    return this.#name;
  }
}

/** Reads the names of many answers. Answers with equal names get the same object. */
export class NamesReader {
  readonly #models = new NameReader();
  readonly #fingerprints = new NameReader();
  #latest = NO_NAMES;

  /** An empty extent stands for a member that the answer does not have. */
  read(bytes: Buffer, extents: { readonly model: Extent; readonly fingerprint: Extent }) {
    const model = this.#models.read(bytes, extents.model);
    const fingerprint = this.#fingerprints.read(bytes, extents.fingerprint);
    if (model !== this.#latest.model || fingerprint !== this.#latest.fingerprint) {
      this.#latest = { model, fingerprint };
    }
    return this.#latest;
  }
}

const BODY_KEYS = quoted(["body"]);
const MODEL_KEY = quoted(["model"]);
const FINGERPRINT_KEY = quoted(["system_fingerprint"]);
const NOWHERE: Extent = { start: 0, end: 0 };

/** Reads the names from rows of an output file. `body` is the last member of a response, as batchd writes it. */
export class RowNames implements Reading<AnswerNames> {
  readonly #scan = new JsonScan(2, ({ depth, keyStart, keyEnd, start, end }) => {
    const response = this.#response;
    if (depth === 1) this.#isBody = indexOfKey(response, keyStart, keyEnd, BODY_KEYS) === 0;
    else if (indexOfKey(response, keyStart, keyEnd, MODEL_KEY) === 0) this.#model = { start, end };
    else if (indexOfKey(response, keyStart, keyEnd, FINGERPRINT_KEY) === 0) {
      this.#fingerprint = { start, end };
    }
  });
  readonly #reader = new NamesReader();
  #response: Buffer = NOTHING;
  #isBody = false;
  #model = NOWHERE;
  #fingerprint = NOWHERE;

  /** Begins with a row of an output file. Its head is known to be JSON. */
  begin(row: Buffer): void {
    this.#response = rowParts(row)?.response ?? NOTHING;
    this.#isBody = false;
    this.#model = NOWHERE;
    this.#fingerprint = NOWHERE;
    this.#scan.begin(this.#response);
  }

  advance(byteCount: number): boolean {
    return this.#scan.advance(byteCount);
  }

  result(): AnswerNames {
    if (!this.#isBody || this.#scan.isValid !== true) return NO_NAMES;
    const extents = { model: this.#model, fingerprint: this.#fingerprint };
    return this.#reader.read(this.#response, extents);
  }
}

/** Counts the names of the answers of a batch. */
export class AnswerNameCounts {
  readonly #models = new NameCounter();
  readonly #fingerprints = new NameCounter();

  add({ model, fingerprint }: AnswerNames): void {
    if (model !== null) this.#models.add(model);
    if (fingerprint !== null) this.#fingerprints.add(fingerprint);
  }

  finish(): Pick<ResultSummary, "models" | "fingerprints"> {
    return { models: this.#models.finish(), fingerprints: this.#fingerprints.finish() };
  }
}
