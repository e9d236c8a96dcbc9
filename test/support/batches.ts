/** Uploads the lines of batches, and creates batches of them, through the official SDK. */
import type OpenAI from "openai";

/** Resolves to the id of the file. */
export async function uploadLines(openai: OpenAI, lines: readonly string[]): Promise<string> {
  const file = new File([`${lines.join("\n")}\n`], "input.jsonl");
  return (await openai.files.create({ file, purpose: "batch" })).id;
}

/** Creates a batch of chat lines, unless `more` names another endpoint. */
export const createBatch = (
  openai: OpenAI,
  input_file_id: string,
  more: Partial<OpenAI.BatchCreateParams> & { readonly x_batchd?: object } = {},
  options?: OpenAI.RequestOptions,
): Promise<OpenAI.Batch> => {
  const usual = { endpoint: "/v1/chat/completions", completion_window: "24h" } as const;
  return openai.batches.create({ input_file_id, ...usual, ...more }, options);
};

/** Uploads the lines and creates a batch of them. */
export const submitLines = async (
  openai: OpenAI,
  lines: readonly string[],
  more: Parameters<typeof createBatch>[2] = {},
): Promise<OpenAI.Batch> => createBatch(openai, await uploadLines(openai, lines), more);
