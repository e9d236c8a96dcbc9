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

/** Reads the value of `usage`. A count that is missing or no count is zero. */
export function readUsage(usage: unknown): Usage {
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
