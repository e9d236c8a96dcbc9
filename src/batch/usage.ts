/**
 * Reads the token counts of upstreams. Chat, completions and embeddings say `prompt_tokens` and `completion_tokens`;
 * responses say `input_tokens` and `output_tokens`. A batch object always has the latter.
 */
import type { Usage } from "./batch.ts";
import { NO_USAGE } from "./batch.ts";
import { indexOfKey, isObjectAt, quoted } from "./json.ts";
import { JsonScan, type Member } from "./json-scan.ts";
import type { Reading } from "./reading.ts";

const USAGE_KEY = quoted(["usage"]);
/** A longer value is no usage of any server. */
const MAX_USAGE_BYTES = 64 * 1024;

/**
 * Finds the usage that an answer reports, with zeros for an answer that reports none. The result is null for bytes that
 * are not one JSON value. One pass finds both, because every answer needs it. The caller checks the UTF-8.
 */
export class UsageReading implements Reading<Usage | null> {
  readonly #scan = new JsonScan(1, (member) => this.#take(member));
  #body: Buffer = Buffer.alloc(0);
  #usage = NO_USAGE;

  begin(body: Buffer): void {
    this.#body = body;
    this.#usage = NO_USAGE;
    this.#scan.begin(body);
  }

  advance(byteCount: number): boolean {
    return this.#scan.advance(byteCount);
  }

  result(): Usage | null {
    return this.#scan.isValid ? this.#usage : null;
  }

  #take({ keyStart, keyEnd, start, end }: Member): void {
    const body = this.#body;
    if (!isObjectAt(body, start) || end - start > MAX_USAGE_BYTES) return;
    if (indexOfKey(body, keyStart, keyEnd, USAGE_KEY) !== 0) return;
    this.#usage = readUsage(JSON.parse(body.toString("utf8", start, end)));
  }
}

const reader = new UsageReading();

/** Reads the usage of a short answer in one step; see {@link UsageReading}. */
export function usageIfJson(body: Buffer): Usage | null {
  reader.begin(body);
  reader.advance(body.length);
  return reader.result();
}

const tokens = (value: unknown): number =>
  typeof value === "number" && Number.isSafeInteger(value) && value > 0 ? value : 0;

const member = (value: unknown, key: string): unknown =>
  typeof value === "object" && value !== null ? (value as Record<string, unknown>)[key] : undefined;

function readUsage(usage: unknown): Usage {
  const inputTokens = tokens(member(usage, "input_tokens") ?? member(usage, "prompt_tokens"));
  const outputTokens = tokens(member(usage, "output_tokens") ?? member(usage, "completion_tokens"));
  const inputDetails =
    member(usage, "input_tokens_details") ?? member(usage, "prompt_tokens_details");
  const outputDetails =
    member(usage, "output_tokens_details") ?? member(usage, "completion_tokens_details");
  return {
    inputTokens,
    cachedTokens: tokens(member(inputDetails, "cached_tokens")),
    outputTokens,
    reasoningTokens: tokens(member(outputDetails, "reasoning_tokens")),
    totalTokens: tokens(member(usage, "total_tokens")) || inputTokens + outputTokens,
  };
}

export const addUsage = (a: Usage, b: Usage): Usage => ({
  inputTokens: a.inputTokens + b.inputTokens,
  cachedTokens: a.cachedTokens + b.cachedTokens,
  outputTokens: a.outputTokens + b.outputTokens,
  reasoningTokens: a.reasoningTokens + b.reasoningTokens,
  totalTokens: a.totalTokens + b.totalTokens,
});
