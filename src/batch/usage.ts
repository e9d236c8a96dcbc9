/**
 * Tokens as upstreams count them. Chat, completions and embeddings say `prompt_tokens` and
 * `completion_tokens`; responses say `input_tokens` and `output_tokens`; batches always say the latter.
 */
import type { Usage } from "./batch.ts";
import { NO_USAGE } from "./batch.ts";
import { indexOfKey, isObjectAt, quoted, skipObject, skipSpace, skipValue } from "./json.ts";

const USAGE_KEY = quoted(["usage"]);

/**
 * The usage that an answer reports, zeros where it reports none; null when the bytes are not one JSON value. Both
 * are found in one pass, because each answer takes it. UTF-8 is the caller's to check.
 */
export function usageIfJson(body: Buffer): Usage | null {
  let usage: Usage = NO_USAGE;
  const end = body.length;
  const start = skipSpace(body, 0, end);
  const after = isObjectAt(body, start)
    ? skipObject(body, start, end, (keyStart, keyEnd, valueStart) => {
        const valueEnd = skipValue(body, valueStart, end);
        if (isObjectAt(body, valueStart) && indexOfKey(body, keyStart, keyEnd, USAGE_KEY) === 0) {
          if (valueEnd > 0)
            usage = readUsage(JSON.parse(body.toString("utf8", valueStart, valueEnd)));
        }
        return valueEnd;
      })
    : skipValue(body, start, end);
  return after > 0 && skipSpace(body, after, end) === end ? usage : null;
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
