/**
 * How many tokens a request may cost, guessed from its bytes and from what it allows for the answer. It is only to
 * be right in proportion: the rate limiter learns from the answers what an estimate is worth.
 */
import { indexOfKey, quoted } from "./json.ts";
import { JsonScan } from "./json-scan.ts";

/** Of English text and of the JSON around it. */
const BYTES_PER_TOKEN = 4;
/** For a request that sets no maximum. */
const USUAL_ANSWER_TOKENS = 256;
/** Longer answers do not exist; whoever allows for them only means that there is no limit. */
const MAX_ANSWER_TOKENS = 1_000_000;
const MAX_CHOICES = 128;
/** Of a longer body its length says nearly all, and reading it would take too long. */
const MAX_READ_BYTES = 256 * 1024;

const KEYS = quoted(["n", "max_completion_tokens", "max_tokens", "max_output_tokens"]);
const CHOICES = 0;

/** At least 1. `body` is the JSON object of a request; of anything else only the length counts. */
export function estimateTokens(body: Buffer): number {
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
  return Math.ceil(body.length / BYTES_PER_TOKEN) + answerTokens * choiceCount;
}

/** The number at the extent if it is one that counts something, else null. */
function countAt(body: Buffer, start: number, end: number): number | null {
  if (end <= start) return null;
  const count = Math.floor(Number(body.toString("latin1", start, end)));
  return count >= 1 ? count : null;
}
