/**
 * Makes the input of the first step of a pipeline: rows of data become lines of a batch by its template. The file is written
 * beside nothing of the user's, and removed after the upload. A row, and what the template makes of it, has a bound, because
 * a template may name a large value a thousand times.
 */
import { createWriteStream } from "node:fs";
import { mkdtemp, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import { JsonPaths } from "../batch/json-paths.ts";
import { LineSplitter, type SplitLine } from "../batch/split.ts";
import { escapeJson, fillTemplate, parseTemplate, type Template } from "../batch/template.ts";
import type { PipelineStep } from "../config/pipeline.ts";
import { contentOf } from "./content.ts";
import { CommandFailure } from "./failure.ts";
import type { InputFile } from "./input.ts";

/** The longest line that any server may be configured to take. */
const MAX_LINE_BYTES = 256 * 1024 * 1024;

/** Returns the file as it is, or a temporary one with a line for each row. */
export async function firstInput(data: InputFile, step: PipelineStep): Promise<InputFile> {
  if (step.template === undefined) return data;
  const template = parseTemplate(step.template);
  if (typeof template === "string") throw new CommandFailure(template);
  const folder = await mkdtemp(join(tmpdir(), "batchd-pipeline-"));
  const remove = () => rm(folder, { recursive: true, force: true });
  const path = join(folder, "input.jsonl");
  try {
    const made = linesOf(rowsOf(data.path), template, step.endpoint);
    await pipeline(made, createWriteStream(path, { mode: 0o600 }));
    const { size: bytes } = await stat(path);
    return { path, name: data.name, bytes, [Symbol.asyncDispose]: remove };
  } catch (error) {
    await remove();
    throw error;
  }
}

async function* rowsOf(path: string): AsyncGenerator<SplitLine> {
  const splitter = new LineSplitter(MAX_LINE_BYTES, { start: 0, firstLine: 1 });
  for await (const piece of contentOf(path)) yield* splitter.push(piece);
  yield* splitter.end();
}

async function* linesOf(
  rows: AsyncIterable<SplitLine>,
  template: Template,
  endpoint: string,
): AsyncGenerator<Buffer> {
  const paths = new JsonPaths(template.placeholders.map(({ path }) => path));
  const middle = Buffer.from(`,"method":"POST","url":${JSON.stringify(endpoint)},"body":`);
  for await (const { bytes, number } of rows) {
    if (bytes === null) throw tooLong(number, "has");
    const row = parsedRow(bytes.toString(), number);
    const json = Buffer.from(JSON.stringify(row));
    const id = Buffer.from(JSON.stringify(customIdOf(row, number)));
    paths.begin(json);
    while (!paths.advance(json.length));
    const found = paths.result();
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
const HEAD = Buffer.from('{"custom_id":');
const TAIL = Buffer.from("}\n");

const tooLong = (number: number, has: string) =>
  new CommandFailure(`line ${number} of the data ${has} more than ${MAX_LINE_BYTES} bytes`);

function parsedRow(row: string, number: number): object {
  try {
    const value: unknown = JSON.parse(row);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return value;
  } catch {
    // The sentence below says it.
  }
  throw new CommandFailure(`line ${number} of the data is not a JSON object`);
}

/** The `custom_id` or the `id` of a row, else the number of its line. */
function customIdOf(row: object, number: number): string {
  const { custom_id: customId, id } = row as Record<string, unknown>;
  const named = customId ?? id;
  return typeof named === "string" || typeof named === "number" ? String(named) : `line-${number}`;
}
