/** What has to hold after a run, each as a sentence when it does not. */
import type OpenAI from "openai";
import type { ResultRow } from "../support/service.ts";
import type { Clients } from "./clients.ts";
import {
  contentFor,
  countedLines,
  deliveriesOf,
  isRefused,
  kindOf,
  questionsOf,
  rowsOf,
  usageFor,
} from "./lines.ts";
import type { ModelServer } from "./model-server.ts";
import type { Places } from "./places.ts";
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

export interface VerdictDeps {
  readonly clients: Clients;
  readonly sizes: Sizes;
  readonly places: Places;
}

/**
 * Returns what is wrong with the results of a batch: each line once, in order, with its own answer, counted right, and
 * delivered as it is.
 */
export async function faultsOfBatch(
  { number, batch }: Ended,
  { clients, sizes, places }: VerdictDeps,
): Promise<string[]> {
  const faults: string[] = [];
  const expect = (what: string, found: unknown, expected: unknown) => {
    const [got, wanted] = [JSON.stringify(found), JSON.stringify(expected)];
    const name = `batch ${number} (${kindOf(number, sizes)})`;
    if (got !== wanted) faults.push(`${name}: ${what} ${difference(got, wanted)}`);
  };
  const rows = rowsOf(number, sizes);
  const answered = rows.filter(({ question }) => !isRefused(question));
  const refused = rows.filter(({ question }) => isRefused(question));
  expect("status", batch.status, "completed");
  expect("request_counts", batch.request_counts, countsOf(number, sizes));
  const outputText = await clients.text(number, batch.output_file_id);
  const errorText = await clients.text(number, batch.error_file_id);
  const [output, error] = [rowsIn(outputText), rowsIn(errorText)];
  expect("lines of the output", idsIn(output), customIdsOf(answered));
  expect("lines of the error file", idsIn(error), customIdsOf(refused));
  const answers = answered.map(({ question }) => contentFor(question));
  expect("answers", output.map(contentIn), answers);
  const usages = output.map((row) => row.response?.body["usage"] as Usage);
  const usagesOfRows = answered.map(({ question }) => usageFor(question));
  expect("usage of the rows", sumOf(usages), sumOf(usagesOfRows));
  const sent = questionsOf(number, sizes).filter((question) => !isRefused(question));
  expect("usage", usageOf(batch), sumOf(sent.map(usageFor)));
  const wanted = deliveriesOf(number, sizes);
  if (wanted.length === 0) return faults;
  const deliveries = await clients.deliveries(number, batch.id);
  const ends = deliveries.map(({ location, status }) => `${location} ${status}`).toSorted();
  const delivered = wanted.map(({ location }) => `${location} delivered`).toSorted();
  expect("deliveries", ends, delivered);
  const texts = [
    ["output.jsonl", outputText],
    ["errors.jsonl", errorText],
  ] as const;
  const files = new Map(texts.filter(([, text]) => text !== ""));
  return [...faults, ...places.faultsOf(batch.id, files)];
}

function countsOf(number: number, sizes: Sizes) {
  const counted = countedLines(number, sizes);
  const failed = counted.filter(({ question }) => isRefused(question)).length;
  return { total: counted.length, completed: counted.length - failed, failed };
}

function usageOf({ usage }: OpenAI.Batch): Usage {
  const { input_tokens = 0, output_tokens = 0, total_tokens = 0 } = usage ?? {};
  return { prompt_tokens: input_tokens, completion_tokens: output_tokens, total_tokens };
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

const customIdsOf = (lines: readonly { readonly customId: string }[]) =>
  lines.map(({ customId }) => customId);

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
