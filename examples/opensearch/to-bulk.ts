/**
 * Converts a result file to a `_bulk` request. Each answer becomes one document with the texts of its request and their
 * embeddings, under its `custom_id`.
 *
 *     npx node examples/opensearch/to-bulk.ts INPUT.jsonl OUTPUT.jsonl > bulk.ndjson
 */
import { createReadStream } from "node:fs";
import { parseArgs } from "node:util";

interface InputLine {
  readonly custom_id: string;
  readonly body: { readonly input: readonly [title: string, text: string] };
}

interface OutputLine {
  readonly custom_id: string;
  readonly response: { readonly body: { readonly data: readonly Embedding[] } };
}

interface Embedding {
  readonly index: number;
  readonly embedding: readonly number[];
}

/** Node's `readline` would also break a line at U+2028 and U+2029, which JSON takes in its strings. */
async function* linesOf(path: string) {
  let rest = "";
  for await (const piece of createReadStream(path, "utf8")) {
    const lines = `${rest}${piece}`.split("\n");
    rest = lines.pop() ?? "";
    yield* lines;
  }
  if (rest !== "") yield rest;
}

const { positionals } = parseArgs({ allowPositionals: true });
const [inputPath, outputPath] = positionals;
if (inputPath === undefined || outputPath === undefined) {
  throw new Error("usage: to-bulk.ts INPUT.jsonl OUTPUT.jsonl");
}

const inputs = new Map<string, InputLine["body"]["input"]>();
for await (const line of linesOf(inputPath)) {
  const { custom_id, body } = JSON.parse(line) as InputLine;
  inputs.set(custom_id, body.input);
}

for await (const line of linesOf(outputPath)) {
  const { custom_id, response } = JSON.parse(line) as OutputLine;
  const [title, text] = inputs.get(custom_id) ?? [];
  const [titleEmbedding, textEmbedding] = response.body.data
    .toSorted((a, b) => a.index - b.index)
    .map(({ embedding }) => embedding);
  const action = { index: { _index: "passages", _id: custom_id } };
  const document = { title, title_embedding: titleEmbedding, text, text_embedding: textEmbedding };
  process.stdout.write(`${JSON.stringify(action)}\n${JSON.stringify(document)}\n`);
}
