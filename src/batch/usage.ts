/**
 * Reads the token counts of upstreams. Chat, completions and embeddings say `prompt_tokens` and `completion_tokens`;
 * responses say `input_tokens` and `output_tokens`. A batch object always has the latter.
 */
import type { Usage } from "./batch.ts";

/**
 * No answer has as many tokens. The sums of a batch, and those of a project over years, stay exact below it: larger counts of
 * an upstream that is broken would exceed the integers of JavaScript after a few lines, and those of the database after 1,024.
 */
const MAX_TOKENS = 1_000_000_000;

const tokens = (value: unknown): number =>
  typeof value === "number" && Number.isInteger(value) && value > 0 && value <= MAX_TOKENS
    ? value
    : 0;

const member = (value: unknown, key: string): unknown =>
  typeof value === "object" && value !== null ? (value as Record<string, unknown>)[key] : undefined;

/** Reads the count behind some keys. */
const count = (usage: unknown, ...keys: readonly string[]): number =>
  tokens(keys.reduce(member, usage));

/**
 * Reads the value of `usage`. A count that is missing or no count is zero. Some gateways have both names of each count, with
 * zeros under those that are not of the endpoint (New API), so a zero leaves it to the other name.
 *
 * Some services count tokens in the total alone, and they are to be paid for: reasoning is no part of the output at xAI and
 * Gemini, and an embedding of Voyage names nothing but its total.
 * Kimi and DeepSeek have names of their own for cached tokens.
 *
 * Cached tokens are part of the input, reasoning is part of the output, and the total is the sum of both, whatever a broken
 * upstream says. Prices rely on it: more cached tokens than input would make the price of the input negative.
 */
export function readUsage(usage: unknown): Usage {
  const input = count(usage, "input_tokens") || count(usage, "prompt_tokens");
  const output = count(usage, "output_tokens") || count(usage, "completion_tokens");
  const unnamed = Math.max(0, count(usage, "total_tokens") - input - output);
  const inputTokens = input || unnamed;
  const outputTokens = input === 0 ? output : output + unnamed;
  const cached =
    count(usage, "input_tokens_details", "cached_tokens") ||
    count(usage, "prompt_tokens_details", "cached_tokens") ||
    count(usage, "cached_tokens") ||
    count(usage, "prompt_cache_hit_tokens");
  const reasoning =
    count(usage, "output_tokens_details", "reasoning_tokens") ||
    count(usage, "completion_tokens_details", "reasoning_tokens");
  return {
    inputTokens,
    cachedTokens: Math.min(cached, inputTokens),
    outputTokens,
    reasoningTokens: Math.min(reasoning, outputTokens),
    totalTokens: inputTokens + outputTokens,
  };
}

export const addUsage = (a: Usage, b: Usage): Usage => ({
  inputTokens: a.inputTokens + b.inputTokens,
  cachedTokens: a.cachedTokens + b.cachedTokens,
  outputTokens: a.outputTokens + b.outputTokens,
  reasoningTokens: a.reasoningTokens + b.reasoningTokens,
  totalTokens: a.totalTokens + b.totalTokens,
});
