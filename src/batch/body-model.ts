/** Finds the model in a request body, and checks in the same pass that the body is one JSON object in UTF-8. */
import { type Extent, indexOfKey, isObjectAt, quoted } from "./json.ts";
import { JsonScan } from "./json-scan.ts";
import { skipSpace } from "./json-tokens.ts";
import type { Reading } from "./reading.ts";
import { Utf8Check } from "./utf8.ts";

const MODEL_KEY = quoted(["model"]);

/** `model` is null for a body without one. The last of several equal keys counts, as it does in lines. */
export type BodyModel =
  | { readonly ok: true; readonly model: Extent | null }
  | { readonly ok: false };

export class BodyModelReading implements Reading<BodyModel> {
  readonly #scan = new JsonScan(1, ({ keyStart, keyEnd, start, end }) => {
    if (indexOfKey(this.#body, keyStart, keyEnd, MODEL_KEY) === 0) this.#model = { start, end };
  });
  #utf8 = new Utf8Check();
  #checkedBytes = 0;
  #body: Buffer = Buffer.alloc(0);
  #model: Extent | null = null;

  begin(body: Buffer): void {
    this.#body = body;
    this.#model = null;
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
    return { ok: true, model: this.#model };
  }

  get #isChecked(): boolean {
    return this.#checkedBytes === this.#body.length;
  }
}
