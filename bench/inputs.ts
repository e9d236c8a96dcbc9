/** Writes batch input files of chat lines piece by piece, so that they need no memory. */
import { createWriteStream } from "node:fs";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";

export const ENDPOINT = "/v1/chat/completions";
const MODEL = "bench-model";
const PIECE_CHARACTERS = 256 * 1024;

/** Prose as people send it: words, line breaks and quotes that JSON escapes, some letters outside ASCII. */
const PROSE = `Summarise the following paragraph for a reader who has never seen it, and keep the names.
"The café on the corner opens at seven," she wrote, "and by eight every table is taken." The façade
was restored in 1987; since then nothing has changed but the prices, and the size of the cups.
`;

export const fillerText = (characters: number): string =>
  PROSE.repeat(Math.ceil(characters / PROSE.length)).slice(0, characters);

/** Returns one line; `prompt` is its last message as JSON. */
const lineOf = (number: number, prompt: string): string =>
  `{"custom_id":"request-${number}","method":"POST","url":"${ENDPOINT}","body":{"model":"${MODEL}","messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":${prompt}}],"max_tokens":64}}\n`;

const SMALL_PROMPT_CHARACTERS = 100;
const bytesOfLine = (prompt: string) => Buffer.byteLength(lineOf(100_000, prompt));

function promptFor(lineBytes: number | null): string {
  if (lineBytes === null) return JSON.stringify(fillerText(SMALL_PROMPT_CHARACTERS));
  let characters = lineBytes;
  let prompt = JSON.stringify(fillerText(characters));
  while (bytesOfLine(prompt) > lineBytes) {
    characters -= bytesOfLine(prompt) - lineBytes;
    prompt = JSON.stringify(fillerText(characters));
  }
  return prompt;
}

export interface InputShape {
  readonly lineCount: number;
  /** The bytes of each line, as near as prose allows; small lines when it is left out. */
  readonly lineBytes?: number;
}

export async function writeInput(path: string, shape: InputShape): Promise<void> {
  const prompt = promptFor(shape.lineBytes ?? null);
  await pipeline(Readable.from(pieces(shape.lineCount, prompt)), createWriteStream(path));
}

/** Returns the number of small lines in about `bytes` bytes. */
export const smallLineCountOf = (bytes: number): number =>
  Math.ceil(bytes / bytesOfLine(promptFor(null)));

function* pieces(lineCount: number, prompt: string): Generator<string> {
  let piece = "";
  for (let number = 1; number <= lineCount; number++) {
    piece += lineOf(number, prompt);
    if (piece.length < PIECE_CHARACTERS) continue;
    yield piece;
    piece = "";
  }
  yield piece;
}
