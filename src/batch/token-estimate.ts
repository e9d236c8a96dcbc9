/**
 * Estimates the tokens that a request may cost, from its bytes and from the length that it allows for the answer. The
 * rate limiter has to reserve tokens before an answer reports them. Only the proportions must be right: the rate
 * limiter learns from the answers what an estimate is worth.
 */
import { indexOfKey, quoted } from "./json.ts";
import { JsonScan } from "./json-scan.ts";

/** The usual ratio for English text and the JSON around it. */
const BYTES_PER_TOKEN = 4;
/** The estimate for a request that sets no maximum. */
const USUAL_ANSWER_TOKENS = 256;
/** A request that allows more has no limit in mind: no answer is as long. */
const MAX_ANSWER_TOKENS = 1_000_000;
const MAX_CHOICES = 128;
/** The length alone decides the estimate of a longer body, and a scan would take too long. */
const MAX_READ_BYTES = 256 * 1024;

const KEYS = quoted(["n", "max_completion_tokens", "max_tokens", "max_output_tokens"]);
const CHOICES = 0;

export interface EstimatedUse {
  readonly inputTokens: number;
  readonly answerTokens: number;
}

/** Returns the estimate, at least 1. Only the length counts for a `body` that is not the JSON object of a request. */
export function estimateTokens(body: Buffer): number {
  const { inputTokens, answerTokens } = estimateUse(body);
  return inputTokens + answerTokens;
}

/** Returns the estimate in its two parts, which may have different prices. */
export function estimateUse(body: Buffer): EstimatedUse {
  const allowed = { choiceCount: 1, answerTokens: 0 };
  const scan = new JsonScan(1, ({ keyStart, keyEnd, start, end }) => {
    const key = indexOfKey(body, keyStart, keyEnd, KEYS);
    if (key === CHOICES) {
      allowed.choiceCount = countAt(body, start, end) ?? 1;
    } else if (key !== -1) {
      allowed.answerTokens = Math.max(allowed.answerTokens, countAt(body, start, end) ?? 0);
    }
  });
  if (body.length <= MAX_READ_BYTES) {
    scan.begin(body);
    scan.advance(body.length);
  }
  const answerTokens = Math.min(allowed.answerTokens || USUAL_ANSWER_TOKENS, MAX_ANSWER_TOKENS);
  const choiceCount = Math.min(allowed.choiceCount, MAX_CHOICES);
  return {
    inputTokens: estimateInputTokens(body.length),
    answerTokens: answerTokens * choiceCount,
  };
}

/** Returns the estimate of the input alone, which enqueued tokens are counted by. */
export const estimateInputTokens = (bodyBytes: number): number =>
  Math.ceil(bodyBytes / BYTES_PER_TOKEN);

/** Returns the number at the extent; null for a value that is no count. */
function countAt(body: Buffer, start: number, end: number): number | null {
  if (end <= start) return null;
  const count = Math.floor(Number(body.toString("latin1", start, end)));
  return count >= 1 ? count : null;
}
