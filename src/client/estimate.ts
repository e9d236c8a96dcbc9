/**
 * `batchd estimate`: how many lines and tokens a file has, and what they may cost. Tokens are estimated from the bytes
 * of each request and the length that it allows for the answer, as the server reserves them.
 */
import { inputTokensOf, modelOf, parseLine } from "../batch/line.ts";
import { amountOf, costOf, formatAmount, type PriceRule, priceFor } from "../batch/price.ts";
import { answerTokensOf } from "../batch/token-estimate.ts";
import { priceRules } from "../config/prices.ts";
import { printable } from "../printable.ts";
import { note, sayJson, sayTable } from "../terminal/lines.ts";
import type { SplitLine } from "../text/split.ts";
import { count, shellPath } from "../words.ts";
import { fileContent, isPacked, linesIn } from "./content.ts";
import { EXIT } from "./exit-codes.ts";
import { CommandFailure } from "./failure.ts";
import { endpointOf, type InputFile, nameFor, openInput } from "./input.ts";
import { configOf, type OfflineFlags, offline, readLines } from "./offline.ts";

export interface EstimateFlags extends OfflineFlags {
  readonly sample?: number;
  readonly model?: string;
  readonly price?: GivenPrice;
  readonly json?: boolean;
}

export interface GivenPrice {
  readonly input: string;
  readonly output: string;
}

interface Sum {
  lines: number;
  inputTokens: number;
  outputTokens: number;
}

/** The name of lines that are no requests, among the models. */
const NO_REQUEST = "no request";

/** Endpoints whose answers are paid for by their input alone. */
const WITHOUT_OUTPUT: readonly (string | null)[] = ["/v1/embeddings", "/v1/moderations"];

export const estimate = (file: string, flags: EstimateFlags): Promise<number> =>
  offline((signal) => estimateFile(file, flags, signal));

async function estimateFile(
  file: string,
  flags: EstimateFlags,
  signal: AbortSignal,
): Promise<number> {
  const config = configOf(flags);
  const maxLineBytes = config.limits.max_line_bytes;
  await using input = await openInput(file, signal);
  const hasOutput = !WITHOUT_OUTPUT.includes(await endpointOf(input.path));
  const sums = new Map<string, Sum>();
  const defaultModel = flags.model ?? config.default_model ?? null;
  const add = ({ bytes }: SplitLine) => addLine(bytes, { sums, defaultModel, hasOutput });
  let scale = 1;
  // A packed file has no places to look at before it was read up to them.
  const isRead = flags.sample === undefined || (await isPacked(input.path));
  if (isRead) await readLines(input.path, maxLineBytes, { onLine: add, signal });
  else scale = await readSample(input, { count: flags.sample, maxLineBytes, onLine: add });
  if (sums.size === 0) throw new CommandFailure(`${nameFor(file)} has no requests`);
  const rules = flags.price === undefined ? priceRules(config.prices) : [ruleOf(flags.price)];
  const rows = [...sums].map(([model, sum]) => rowOf(model, scaled(sum, scale), rules));
  if (flags.json) for (const row of rows) sayJson({ ...row, is_exact_count: scale === 1 });
  else sayRows(rows, scale !== 1);
  if (sums.has(NO_REQUEST)) {
    note(`Some lines are no requests: batchd validate ${printable(shellPath(file))} says why.`);
  }
  return EXIT.done;
}

interface Adding {
  readonly sums: Map<string, Sum>;
  readonly defaultModel: string | null;
  readonly hasOutput: boolean;
}

function addLine(bytes: Buffer | null, { sums, defaultModel, hasOutput }: Adding): void {
  const line = bytes === null ? null : parseLine(bytes);
  const isRequest = bytes !== null && line !== null && line.body !== null;
  const model = isRequest ? (modelOf(bytes, line, defaultModel) ?? "no model") : NO_REQUEST;
  const sum = sums.get(model) ?? { lines: 0, inputTokens: 0, outputTokens: 0 };
  sums.set(model, sum);
  sum.lines++;
  if (!isRequest) return;
  sum.inputTokens += inputTokensOf(line);
  if (hasOutput) sum.outputTokens += answerTokensOf(line);
}

const scaled = (sum: Sum, scale: number): Sum => ({
  lines: Math.round(sum.lines * scale),
  inputTokens: Math.round(sum.inputTokens * scale),
  outputTokens: Math.round(sum.outputTokens * scale),
});

const ruleOf = ({ input, output }: GivenPrice): PriceRule => ({
  model: "*",
  price: {
    currency: "",
    per: 1_000_000,
    perRequest: "0",
    input,
    output,
    cachedInput: input,
  },
});

function rowOf(model: string, sum: Sum, rules: readonly PriceRule[]) {
  const price = priceFor(rules, model);
  const { lines, inputTokens, outputTokens } = sum;
  const consumption = { requestCount: lines, inputTokens, outputTokens, cachedTokens: 0 };
  return {
    model,
    lines,
    input_tokens: inputTokens,
    output_tokens: outputTokens,
    cost: price === null ? null : formatAmount(costOf(consumption, price)),
    currency: price?.currency || null,
  };
}

type Row = ReturnType<typeof rowOf>;

function sayRows(rows: readonly Row[], isSampled: boolean): void {
  const total = rows.reduce((sum, row) => sum + amountOf(row.cost ?? "0"), 0n);
  const currency = rows.find((row) => row.currency !== null)?.currency ?? "";
  const head = ["LINES", "INPUT TOKENS", "OUTPUT TOKENS", "COST", "MODEL"];
  sayTable(
    head,
    rows.map((row) => [
      count(row.lines),
      count(row.input_tokens),
      count(row.output_tokens),
      row.cost === null ? "-" : `${row.cost} ${row.currency ?? ""}`.trim(),
      row.model,
    ]),
  );
  if (rows.length > 1 && total > 0n) note(`cost in all: ${formatAmount(total)} ${currency}`.trim());
  if (rows.every((row) => row.cost === null)) {
    note("No price: --price 0.50/1.50 names one for a million tokens, or prices in --config.");
  }
  if (isSampled) note("All numbers are extended from the sample.");
  note(
    "Tokens are estimated: 4 bytes each, and for answers max_tokens, or 256 where a line sets none. batchd submit --sample 20 measures them.",
  );
}

interface Sampling {
  readonly count: number;
  readonly maxLineBytes: number;
  readonly onLine: (line: SplitLine) => void;
}

/** Reads lines at places spread over the file. Resolves to the number of lines that each of them stands for. */
async function readSample(
  { path, bytes }: InputFile,
  { count: wanted, maxLineBytes, onLine }: Sampling,
): Promise<number> {
  let sampledBytes = 0;
  let reachedTo = 0;
  for (let i = 0; i < wanted; i++) {
    const at = Math.floor((bytes * i) / wanted);
    if (at < reachedTo) continue;
    const line = await lineFrom(path, at, maxLineBytes);
    if (line === null) break;
    reachedTo = at + line.end;
    sampledBytes += line.end - line.start;
    onLine(line);
  }
  return sampledBytes === 0 ? 1 : Math.max(1, bytes / sampledBytes);
}

/** Returns the first line that begins at this place or behind it; null if there is none. */
async function lineFrom(path: string, at: number, maxLineBytes: number): Promise<SplitLine | null> {
  let isWhole = at === 0;
  for await (const line of linesIn(fileContent(path, { start: at }), maxLineBytes)) {
    if (isWhole) return line;
    isWhole = true;
  }
  return null;
}
