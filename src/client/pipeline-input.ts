/**
 * Makes the input of the first step of a pipeline: rows of data become lines of a batch by its template. The file is written
 * beside nothing of the user's, and removed after the upload. A row, and what the template makes of it, has a bound, because
 * a template may name a large value a thousand times. Values are copied as they are written: a number of JavaScript has no
 * more than 53 bits, and ids of rows have 64.
 */
import { isUtf8 } from "node:buffer";
import { hintFor, judgeFirstLine } from "../batch/first-line.ts";
import { escapeJson, fillTemplate, parseTemplate, type Template } from "../batch/template.ts";
import type { PipelineStep } from "../config/pipeline.ts";
import { isJsonObject } from "../contract/json-object.ts";
import { decodeString, type Extent, isStringAt } from "../text/json.ts";
import { JsonPaths } from "../text/json-paths.ts";
import type { SplitLine } from "../text/split.ts";
import { linesIn, MAX_LINE_BYTES, unpackedContent } from "./content.ts";
import { CommandFailure } from "./failure.ts";
import { type InputFile, keepInput } from "./input.ts";

/** Returns the file as it is, or a temporary one with a line for each row. */
export async function firstInput(
  data: InputFile,
  step: PipelineStep,
  signal: AbortSignal,
): Promise<InputFile> {
  if (step.template === undefined) return data;
  const template = parseTemplate(step.template);
  if (typeof template === "string") throw new CommandFailure(template);
  return keepInput(
    linesOf(linesIn(unpackedContent(data.path), MAX_LINE_BYTES), template, step.endpoint),
    data.name,
    signal,
  );
}

async function* linesOf(
  rows: AsyncIterable<SplitLine>,
  template: Template,
  endpoint: string,
): AsyncGenerator<Buffer> {
  const paths = new JsonPaths([...ID_PATHS, ...template.placeholders.map(({ path }) => path)]);
  const middle = Buffer.from(`,"method":"POST","url":${JSON.stringify(endpoint)},"body":`);
  for await (const { bytes, number } of rows) {
    if (bytes === null) throw tooLong(number, "has");
    if (!isUtf8(bytes)) throw new CommandFailure(`line ${number} of the data is not in UTF-8`);
    // Spreadsheets and Windows put a byte order mark before the first row, which the decoder leaves out.
    const row = DECODER.decode(bytes);
    assertObject(row, number);
    const json = Buffer.from(row);
    paths.begin(json);
    while (!paths.advance(json.length));
    const [customId, rowId, ...found] = paths.result();
    const named = idIn(json, customId) ?? idIn(json, rowId) ?? `line-${number}`;
    const id = Buffer.from(JSON.stringify(named));
    const values = template.placeholders.map(({ root }, i) => {
      if (root === "custom_id") return { bytes: id, extent: { start: 0, end: id.length } };
      const extent = found[i] ?? null;
      return extent && { bytes: json, extent };
    });
    const filled = fillTemplate(template, values);
    if (!filled.ok) {
      throw new CommandFailure(
        `line ${number} of the data has ${filled.isNull ? "null at" : "no"} '${filled.missing.text}', which the first step needs`,
      );
    }
    if (filled.minBytes > MAX_LINE_BYTES) throw tooLong(number, "would become a line with");
    yield Buffer.concat([HEAD, id, middle]);
    for (const piece of filled.pieces) {
      yield piece.isEscaped ? escapeJson(piece.bytes) : piece.bytes;
    }
    yield TAIL;
  }
}
const DECODER = new TextDecoder();
const HEAD = Buffer.from('{"custom_id":');
const TAIL = Buffer.from("}\n");

const tooLong = (number: number, has: string) =>
  new CommandFailure(`line ${number} of the data ${has} more than ${MAX_LINE_BYTES} bytes`);

function assertObject(row: string, number: number): void {
  try {
    if (isJsonObject(JSON.parse(row))) return;
  } catch {
    // The sentence below says it.
  }
  const hint = hintFor(judgeFirstLine(Buffer.from(row)), number);
  const more = hint === null ? "" : ` (HINT: ${hint})`;
  throw new CommandFailure(`line ${number} of the data is not a JSON object${more}`);
}

/** The first of these that is a string or a number is the `custom_id` of the line. */
const ID_PATHS = [["custom_id"], ["id"]] as const;
const NUMBER = /^[-0-9]/;

/** Returns a string or a number as text; null for another value. */
function idIn(json: Buffer, extent: Extent | null | undefined): string | null {
  if (extent === null || extent === undefined) return null;
  if (isStringAt(json, extent.start)) return decodeString(json, extent);
  const text = json.toString("latin1", extent.start, extent.end);
  return NUMBER.test(text) ? text : null;
}
