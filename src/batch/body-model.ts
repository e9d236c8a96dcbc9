/**
 * Finds the model in a request body and the length that it allows for its answer, and checks in the same pass that the
 * body is one JSON object in UTF-8.
 */
import {
  type Extent,
  indexOfKey,
  isInOtherCase,
  isObjectAt,
  isOther,
  quoted,
} from "../text/json.ts";
import { JsonScan, type Member } from "../text/json-scan.ts";
import { skipSpace } from "../text/json-tokens.ts";
import type { Reading } from "../text/reading.ts";
import { Utf8Check } from "../text/utf8.ts";
import { answerTokensOf, estimateInputTokens, NOTHING_SAID, noteMember } from "./token-estimate.ts";

const MODEL_KEY = quoted(["model"]);

/** `model` is null for a body without one. `otherModel` is a key that names another one, as in lines. */
export type BodyModel =
  | {
      readonly ok: true;
      readonly model: Extent | null;
      readonly otherModel: Extent | null;
      readonly inputTokens: number;
      readonly answerTokens: number;
    }
  | { readonly ok: false };

export class BodyModelReading implements Reading<BodyModel> {
  readonly #scan = new JsonScan(1, (member) => this.#take(member));
  #utf8 = new Utf8Check();
  #checkedBytes = 0;
  #body: Buffer = Buffer.alloc(0);
  #model: Extent | null = null;
  #otherModel: Extent | null = null;
  #allowed = { ...NOTHING_SAID };

  begin(body: Buffer): void {
    this.#body = body;
    this.#model = null;
    this.#otherModel = null;
    this.#allowed = { ...NOTHING_SAID };
    this.#utf8 = new Utf8Check();
    this.#checkedBytes = 0;
    this.#scan.begin(body);
  }

  advance(byteCount: number): boolean {
    const piece = this.#body.subarray(this.#checkedBytes, this.#checkedBytes + byteCount);
    this.#checkedBytes += piece.length;
    this.#utf8.add(piece);
    return this.#scan.advance(byteCount) && (!this.#scan.isValid || this.#isChecked);
  }

  result(): BodyModel {
    const body = this.#body;
    const isObject = isObjectAt(body, skipSpace(body, 0, body.length));
    if (!this.#scan.isValid || !this.#utf8.isValid || !isObject) return { ok: false };
    const inputTokens = estimateInputTokens(body.length, this.#scan);
    const answerTokens = answerTokensOf(this.#allowed);
    const tokens = { inputTokens, answerTokens };
    return { ok: true, model: this.#model, otherModel: this.#otherModel, ...tokens };
  }

  #take(member: Member): void {
    const { keyStart, keyEnd, start, end } = member;
    const key = { start: keyStart, end: keyEnd };
    if (indexOfKey(this.#body, keyStart, keyEnd, MODEL_KEY) === 0) {
      const model = { start, end };
      if (isOther(this.#body, this.#model, model)) this.#otherModel = key;
      this.#model = model;
      return;
    }
    if (isInOtherCase(this.#body, key, "model")) this.#otherModel = key;
    noteMember(this.#allowed, this.#body, member);
  }

  get #isChecked(): boolean {
    return this.#checkedBytes === this.#body.length;
  }
}
