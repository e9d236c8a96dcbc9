/**
 * Estimates the tokens that a request may cost, from its bytes and from the length that it allows for the answer. The
 * rate limiter and the budgets have to reserve tokens before an answer reports them. For the rate limiter only the
 * proportions must be right, because it learns from the answers what an estimate is worth.
 *
 * The scan that reads a request anyway notes the length, so that a long body costs no second pass.
 */
import { indexOfKey, isArrayAt, isStringAt, quoted } from "../text/json.ts";
import type { Member } from "../text/json-scan.ts";
import { isDigit, skipSpace } from "../text/json-tokens.ts";

/** The usual ratio for English text and the JSON around it. */
const BYTES_PER_TOKEN = 4;
/**
 * An image counts so many tokens, and one for so many bytes of its base64. Models take a fixed number for a tile or one for
 * some 28 by 28 pixels, which are 300 bytes or more of base64 in a photo.
 */
const TOKENS_PER_IMAGE = 1_024;
const BYTES_PER_IMAGE_TOKEN = 256;
/** The estimate for a request that sets no maximum. */
const USUAL_ANSWER_TOKENS = 256;
/** A request that allows more has no limit in mind: no answer is as long. */
const MAX_ANSWER_TOKENS = 1_000_000;
const MAX_CHOICES = 128;
const MAX_PROMPTS = 100_000;

const CHOICE_NAMES = ["n", "best_of"];
const MAXIMUM_NAMES = ["max_completion_tokens", "max_tokens", "max_output_tokens"];
const KEYS = quoted([...CHOICE_NAMES, "prompt", ...MAXIMUM_NAMES]);
const CHOICES = 0;
const CANDIDATES = 1;
const PROMPT = 2;
const NOT_FOUND = -1;
const DIGIT_0 = 0x30;
/** A longer number has no limit in mind. A line has room for one of many megabytes, which would take long to read. */
const MAX_COUNT_BYTES = 32;

/** What a request allows for its answer. */
export interface AllowedAnswer {
  /** The answers to one prompt. Those of `best_of` that are not chosen are paid for, too. */
  readonly choiceCount: number;
  /** A completion may have a list of prompts, each of which gets an answer of its own. */
  readonly promptCount: number;
  /** The largest maximum that the request sets; 0 when it sets none. */
  readonly maxTokens: number;
}

export const NOTHING_SAID: AllowedAnswer = { choiceCount: 1, promptCount: 1, maxTokens: 0 };

/** Returns what the fields allow that an operator sets in all bodies for a target. */
export function allowedByFields(fields: Readonly<Record<string, unknown>>): AllowedAnswer {
  const highest = (names: readonly string[]) =>
    names.reduce((most, name) => Math.max(most, Math.floor(numberOf(fields[name]))), 0);
  return {
    choiceCount: Math.max(1, highest(CHOICE_NAMES)),
    promptCount: 1,
    maxTokens: highest(MAXIMUM_NAMES),
  };
}

const numberOf = (value: unknown): number => (typeof value === "number" ? value : 0);

/** Notes a member of a body, which may be one of those that limit the answer. */
export function noteMember(
  allowed: { -readonly [Key in keyof AllowedAnswer]: AllowedAnswer[Key] },
  body: Buffer,
  member: Member,
): void {
  const { keyStart, keyEnd, start, end } = member;
  const key = indexOfKey(body, keyStart, keyEnd, KEYS);
  if (key === CHOICES || key === CANDIDATES) {
    allowed.choiceCount = Math.max(allowed.choiceCount, countAt(body, start, end) ?? 1);
  } else if (key === PROMPT) allowed.promptCount = textCountAt(body, member);
  else if (key !== NOT_FOUND) {
    allowed.maxTokens = Math.max(allowed.maxTokens, countAt(body, start, end) ?? 0);
  }
}

/**
 * Returns the estimate of the answer of a target that sets fields. A request that allows more than a forced value counts as it
 * says: it may say so in another field than the forced one, and the server chooses which of them holds.
 */
export const answerTokensWith = (
  { choiceCount, promptCount, maxTokens }: AllowedAnswer,
  { forced, defaults }: { readonly forced: AllowedAnswer; readonly defaults: AllowedAnswer },
): number =>
  answerTokensOf({
    choiceCount: Math.max(choiceCount, forced.choiceCount, defaults.choiceCount),
    promptCount,
    maxTokens: Math.max(maxTokens, forced.maxTokens) || defaults.maxTokens,
  });

/** Returns the estimate of the answer. */
export const answerTokensOf = (allowed: AllowedAnswer): number =>
  Math.min(allowed.maxTokens || USUAL_ANSWER_TOKENS, MAX_ANSWER_TOKENS) *
  Math.min(allowed.choiceCount, MAX_CHOICES) *
  Math.min(allowed.promptCount, MAX_PROMPTS);

/**
 * Counts the texts in the value of a prompt or an input. A text and a list of tokens count as one. A list of texts, or of
 * lists of tokens, counts by its elements. The upstream refuses any other value.
 */
export function textCountAt(
  body: Buffer,
  { start, end, commaCount }: Pick<Member, "start" | "end" | "commaCount">,
): number {
  if (!isArrayAt(body, start)) return 1;
  const first = skipSpace(body, start + 1, end);
  return isStringAt(body, first) || isArrayAt(body, first) ? commaCount + 1 : 1;
}

/** The images of a body in `data:` URLs, of 8 KB and more, and the bytes of these URLs. */
export interface Images {
  readonly imageCount: number;
  readonly imageBytes: number;
}

/**
 * Returns the estimate of the input alone, which enqueued tokens are counted by. As text an image of 5 MB would be 1.7 million
 * tokens.
 */
export const estimateInputTokens = (bodyBytes: number, images: Images): number =>
  Math.ceil((bodyBytes - images.imageBytes) / BYTES_PER_TOKEN) +
  Math.ceil(images.imageBytes / BYTES_PER_IMAGE_TOKEN) +
  images.imageCount * TOKENS_PER_IMAGE;

/** Returns the number at the extent; null for a value that is no count. vLLM takes a text of digits for a number. */
function countAt(body: Buffer, start: number, end: number): number | null {
  const isText = isStringAt(body, start);
  if (end - start > MAX_COUNT_BYTES) {
    return isText || isDigit(body[start]) ? Number.POSITIVE_INFINITY : null;
  }
  if (isText) return decimalAt(body, start + 1, end - 1);
  let count = 0;
  for (let at = start; at < end; at++) {
    const byte = body[at] as number;
    if (!isDigit(byte)) return at === start ? null : decimalAt(body, start, end);
    count = 10 * count + byte - DIGIT_0;
  }
  return count >= 1 ? count : null;
}

/** Returns the whole part of a number with a fraction or an exponent, or of one in a text, as few clients write it. */
function decimalAt(body: Buffer, start: number, end: number): number | null {
  const text = body.toString("latin1", start, end);
  // An escape in place of a digit is there to pass a limit by.
  if (text.includes("\\")) return Number.POSITIVE_INFINITY;
  const count = Math.floor(Number(text));
  return count >= 1 ? count : null;
}
