/**
 * Makes the lines of a derived input out of a template. The size of a line is known before it is built, because a template
 * may name a large answer a thousand times.
 */
import type { Batch } from "../../batch/batch.ts";
import type { LineFault } from "../../batch/line-check.ts";
import {
  escapeJson,
  type Filled,
  type Found,
  fillTemplate,
  type Placeholder,
  type Template,
} from "../../batch/template.ts";
import { read, STEP_BYTES, timeForMore } from "../../resources/time-slice.ts";
import { decodeStart, type Extent } from "../../text/json.ts";
import { type JsonPath, JsonPaths } from "../../text/json-paths.ts";
import { truncate } from "../../text/truncate.ts";
import type { SourceLine } from "./source-lines.ts";

const PARAM = "x_batchd.from.template";
const END = Buffer.from("}");
/** The longest part of a custom id to decode. No message quotes as much. */
const MAX_QUOTED_BYTES = 4 * 1024;

/** A line in pieces without its newline, or what is wrong with it. */
export type FilledLine =
  | { readonly ok: true; readonly pieces: readonly Buffer[] }
  | { readonly ok: false; readonly fault: LineFault };

export class LineFiller {
  readonly #template: Template;
  readonly #middle: Buffer;
  readonly #maxLineBytes: number;
  /** The custom id and the placeholders that are in the line of the source. */
  readonly #inLine: JsonPaths;
  readonly #inRow: JsonPaths;

  constructor(template: Template, { endpoint }: Pick<Batch, "endpoint">, maxLineBytes: number) {
    this.#template = template;
    this.#maxLineBytes = maxLineBytes;
    this.#middle = Buffer.from(`,"method":"POST","url":${JSON.stringify(endpoint)},"body":`);
    const ofLine = template.placeholders.filter(({ root }) => root !== "output");
    const ofRow = template.placeholders.filter(({ root }) => root === "output");
    this.#inLine = new JsonPaths([["custom_id"], ...ofLine.map(pathInLine)]);
    this.#inRow = new JsonPaths(ofRow.map(({ path }) => ["response", "body", ...path]));
  }

  async fill({ bytes: line, row }: SourceLine): Promise<FilledLine> {
    const [customId = null, ...inLine] = await read(this.#inLine, line);
    const inRow = row === null ? [] : await read(this.#inRow, row);
    if (customId === null) throw new Error("a line of a source has no custom_id");
    const [lineValues, rowValues] = [inLine.values(), inRow.values()];
    const values = this.#template.placeholders.map(({ root }): Found => {
      const isInRow = root === "output";
      const extent = (isInRow ? rowValues.next().value : lineValues.next().value) ?? null;
      const bytes = isInRow ? row : line;
      return extent === null || bytes === null ? null : { bytes, extent };
    });
    const id = line.subarray(customId.start, customId.end);
    const head = [Buffer.from('{"custom_id":'), id, this.#middle];
    const filled = fillTemplate(this.#template, values);
    if (!filled.ok) return faultOf(filled, { line, customId, hasAnswer: row !== null });
    const bytes = head.reduce((sum, { length }) => sum + length, filled.minBytes + END.length);
    if (bytes > this.#maxLineBytes) return this.#tooLong(line, customId);
    const body = await spelled(filled.pieces);
    const escapedBytes = body.reduce((sum, { length }) => sum + length, 0);
    if (bytes - filled.minBytes + escapedBytes > this.#maxLineBytes) {
      return this.#tooLong(line, customId);
    }
    return { ok: true, pieces: [...head, ...body, END] };
  }

  #tooLong(line: Buffer, customId: Extent): FilledLine {
    const message = `The line of ${quotedId(line, customId)} would have more than ${this.#maxLineBytes} bytes.`;
    return { ok: false, fault: { code: "line_too_long", message, param: PARAM } };
  }
}

const pathInLine = ({ root, path }: Placeholder): JsonPath =>
  root === "custom_id" ? ["custom_id"] : ["body", ...path];

const quotedId = (line: Buffer, customId: Extent) =>
  `'${truncate(decodeStart(line, customId, MAX_QUOTED_BYTES))}'`;

function faultOf(
  { missing: { root, text }, isNull }: Extract<Filled, { readonly ok: false }>,
  source: { readonly line: Buffer; readonly customId: Extent; readonly hasAnswer: boolean },
): FilledLine {
  const id = quotedId(source.line, source.customId);
  const path = truncate(text);
  const lack = isNull ? `has null at '${path}', which is no text` : `has no '${path}'`;
  const isUnanswered = root === "output" && !source.hasAnswer;
  const reason = isUnanswered ? `has no answer, so there is no '${path}'` : lack;
  const message = `The line of ${id} ${reason}.`;
  return { ok: false, fault: { code: "template_value_missing", message, param: PARAM } };
}

/** Spells objects and lists as text where they stand within a string, in slices. */
async function spelled(
  pieces: readonly { readonly bytes: Buffer; readonly isEscaped: boolean }[],
): Promise<readonly Buffer[]> {
  const body: Buffer[] = [];
  for (const { bytes, isEscaped } of pieces) {
    if (!isEscaped) {
      body.push(bytes);
      continue;
    }
    for (let at = 0; at < bytes.length; at += STEP_BYTES) {
      const pause = timeForMore();
      if (pause !== null) await pause;
      body.push(escapeJson(bytes.subarray(at, at + STEP_BYTES)));
    }
  }
  return body;
}
