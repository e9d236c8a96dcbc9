/** What has to hold after a run, each as a sentence when it does not. */
import type OpenAI from "openai";
import type { ResultRow } from "../support/service.ts";
import type { Clients } from "./clients.ts";
import { contentFor, isRefused, usageFor } from "./lines.ts";
import type { ModelServer } from "./model-server.ts";
import type { Sizes } from "./sizes.ts";

/** What an upstream may get beyond its limit. */
const TOLERANCE = 1.05;

interface Usage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly total_tokens: number;
}

export interface Ended {
  /** The number of the batch in the run. */
  readonly number: number;
  readonly batch: OpenAI.Batch;
}

/** Returns what is wrong with the results of a batch: each line once, in order, with its own answer, and counted right. */
export async function faultsOfBatch(clients: Clients, { number, batch }: Ended): Promise<string[]> {
  const faults: string[] = [];
  const expect = (what: string, found: unknown, expected: unknown) => {
    const [got, wanted] = [JSON.stringify(found), JSON.stringify(expected)];
    if (got !== wanted) faults.push(`batch ${number}: ${what} ${difference(got, wanted)}`);
  };
  const ids = clients.idsOf(number);
  const answered = ids.filter((id) => !isRefused(id));
  const refused = ids.filter(isRefused);
  expect("status", batch.status, "completed");
  const counts = { total: ids.length, completed: answered.length, failed: refused.length };
  expect("request_counts", batch.request_counts, counts);
  const output = rowsIn(await clients.text(number, batch.output_file_id));
  const error = rowsIn(await clients.text(number, batch.error_file_id));
  expect("lines of the output", idsIn(output), answered);
  expect("lines of the error file", idsIn(error), refused);
  expect(
    "answers",
    output.map(contentIn),
    answered.map((id) => contentFor(id)),
  );
  const usages = output.map((row) => row.response?.body["usage"] as Usage);
  expect("usage of the rows", sumOf(usages), sumOf(answered.map(usageFor)));
  const { input_tokens = 0, output_tokens = 0, total_tokens = 0 } = batch.usage ?? {};
  const usage = {
    prompt_tokens: input_tokens,
    completion_tokens: output_tokens,
    total_tokens,
  };
  expect("usage", usage, sumOf(usages));
  return faults;
}

/** Returns the limits of the model server that were exceeded. */
export function faultsOfLimits(model: ModelServer, sizes: Sizes): string[] {
  const check = (what: string, found: number, limit: number) =>
    found <= limit * TOLERANCE ? [] : [`${what}: ${found}, but the limit is ${limit}`];
  return [
    ...check("requests in flight", model.maxInFlight, sizes.maxConcurrency),
    ...check("requests in a minute", model.maxPerMinute, sizes.requestsPerMinute),
  ];
}

const rowsIn = (text: string): ResultRow[] =>
  text
    .split("\n")
    .slice(0, -1)
    .map((line) => JSON.parse(line) as ResultRow);

const idsIn = (rows: readonly ResultRow[]) => rows.map((row) => row.custom_id);

function contentIn({ response }: ResultRow): string {
  const choices = response?.body["choices"] as { message: { content: string } }[] | undefined;
  return choices?.[0]?.message.content ?? "";
}

const sumOf = (usages: readonly Usage[]): Usage =>
  usages.reduce(
    (sum, each) => ({
      prompt_tokens: sum.prompt_tokens + each.prompt_tokens,
      completion_tokens: sum.completion_tokens + each.completion_tokens,
      total_tokens: sum.total_tokens + each.total_tokens,
    }),
    { prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 },
  );

/** Shows two long texts from where they begin to differ. */
function difference(got: string, wanted: string): string {
  let at = 0;
  while (got[at] === wanted[at]) at++;
  const part = (text: string) => text.slice(Math.max(0, at - 20), at + 100);
  return `differs at ${at}: …${part(got)}… instead of …${part(wanted)}…`;
}
