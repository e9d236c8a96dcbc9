/**
 * Decides whose fault an unsuccessful answer is: the line's, or the operator's configuration.
 *
 * A model server that refuses the operator's own key, account or address answers every line so. If these answers were
 * charged to the lines, a revoked key would end a batch of 50,000 in seconds. An answer about the line's own model or
 * content belongs to the line, whatever its status. `docs/architecture.md` has the whole table.
 *
 * The patterns cover OpenAI, Azure, vLLM, Ollama, llama.cpp, LiteLLM, OpenRouter, Groq, DeepSeek, Gemini, Anthropic,
 * xAI and DashScope. A server with other words is judged by its status alone; `holds.ts` keeps such a judgement from
 * holding up other tenants.
 */
import type { RefusalReason } from "../../batch/outcome.ts";

/** The head of an answer, and as much of its body as there is. */
export interface JudgedAnswer {
  readonly status: number;
  readonly contentType: string | null;
  readonly body: Buffer;
}

/** The part of an answer that is known before its body. */
interface AnswerStart extends Omit<JudgedAnswer, "body"> {
  /** It is null as long as it is not known. */
  readonly bodyBytes: number | null;
}

export interface Refusal {
  readonly reason: RefusalReason;
  /** The server's code for the refusal, if it is one plain word. */
  readonly code: string | null;
}

const MAX_JUDGED_BYTES = 16 * 1024;

/** The whole answer of LM Studio, with 200, to a path that it does not have. */
const NO_SUCH_PATH = /^\s*\{\s*"error"\s*:\s*"Unexpected endpoint or method\b/;
/** The longest such answer, which repeats the path. Answers of models are longer, and must pass as they come. */
const MAX_NO_SUCH_PATH_BYTES = 160;

/** The codes, in `error.code` or `error.type` under any status below 500, of an account that cannot pay. */
const QUOTA_CODE =
  /^(?:insufficient_(?:quota|balance|credits|funds)|billing_\w+|payment_required|credit_balance_\w+|budget_exceeded|(?:organization|project)_(?:usage|spend)_limit_exceeded|quota_exceeded|exceeded_current_quota_error|arrearage|blocked_api_access|access_terminated\w*)$/i;
/** The codes, in the same places, of a key or an account that is not accepted. */
const CREDENTIALS_CODE =
  /^(?:invalid_api_key|invalid_key|expired_key|token_not_found_in_db|authentication_error|auth_error|account_deactivated|organization_(?:deactivated|restricted)|unsupported_country_region_territory|invalid_organization|ip_not_authorized|unauthorized)$/i;
const QUOTA_TEXT =
  /exceeded your current quota|insufficient (?:quota|balance|credits|funds)|credit balance is too low|billing hard limit|budget has been exceeded|account is not active/i;
/** Gemini calls every rate limit a quota. It says when to come again, which no account without credit does. */
const RATE_TEXT = /\bretry in \d|"retryDelay"/;
/** What Anthropic and Groq say with 400, as if the line were wrong. */
const ACCOUNT_TEXT =
  /your credit balance is too low|reached your specified api usage limits|reached its (?:monthly )?spend(?:ing)? limit/i;
/**
 * A key that lacks a right gets a text that looks like one about a model (`model.request`). Gemini and xAI refuse a
 * wrong key with 400.
 */
const KEY_TEXT =
  /missing scopes|insufficient permissions|api key (?:not valid|expired)|incorrect api key provided/i;

const MODEL_CODE = /model|deployment/i;
/** The pattern skips words that are part of an echoed path. */
const MODEL_TEXT = /(?<![\w/])(?:models?|deployments?|no endpoints found)(?![\w/])/i;
/**
 * The nearest `model` before the other words is enough. A pattern that looks on from each one takes 18 ms for an answer that has
 * thousands, as one that repeats the words of a line may.
 */
const MODEL_ACCESS_TEXT =
  /(?:not allowed|no access|does not have access|not have access|not available|not permitted)\b.{0,80}\bmodel|\bmodel\b(?:(?!\bmodel\b).){0,300}?\b(?:does not exist|not found|not allowed|not available for this api key|no access)/is;
/**
 * What OpenAI says with 404 of a thing that a line names by its id: an item of an earlier answer, a conversation, a vector
 * store.
 */
const NAMED_THING_TEXT =
  /\b(?:item|conversation|response|vector store|container|prompt|file) with id\b|\bno such file object\b/i;
const CONTENT_CODE = /content|moderation|policy_violation|safety|guardrail/i;
const CONTENT_TEXT =
  /moderation|flagged|usage polic|content polic|content management polic|content filter|safety (?:system|filter|polic)|guardrail|violat\w{1,9} .{0,40}polic|prohibited content/i;

/** Returns null when the answer is about the line, or about the load. */
export function refusalOf(answer: JudgedAnswer): Refusal | null {
  const { status, contentType, body } = answer;
  if (!isWorthJudging({ status, contentType, bodyBytes: body.length })) return null;
  if (isSuccess(status) && !isPageType(contentType)) {
    return NO_SUCH_PATH.test(body.toString("latin1")) ? { reason: "address", code: null } : null;
  }
  const words = wordsOf(answer);
  const refused = (reason: RefusalReason) => ({ reason, code: words.code });
  if (words.codes.some((code) => QUOTA_CODE.test(code))) return refused("quota");
  if (words.codes.some((code) => CREDENTIALS_CODE.test(code))) return refused("credentials");
  if (isRedirect(status) || words.isPage) {
    return status === 401 || status === 403 || status === 407
      ? refused("credentials")
      : refused("address");
  }
  if (KEY_TEXT.test(words.text) && status !== 404) return refused("credentials");
  switch (status) {
    case 401:
      return isAboutModelAccess(words) ? null : refused("credentials");
    case 403:
      if (isAboutModel(words) || isAboutContent(words)) return null;
      return refused(QUOTA_TEXT.test(words.text) ? "quota" : "credentials");
    case 407:
      return refused("credentials");
    case 402:
      return refused("quota");
    case 429:
      if (RATE_TEXT.test(words.text)) return null;
      return QUOTA_TEXT.test(words.text) || ACCOUNT_TEXT.test(words.text) ? refused("quota") : null;
    case 404:
    case 405:
    case 421:
    case 426:
      return isAboutModel(words) || NAMED_THING_TEXT.test(words.text) ? null : refused("address");
    default:
      return ACCOUNT_TEXT.test(words.text) ? refused("quota") : null;
  }
}

/**
 * What OpenAI says with 429 to a request that has more tokens than the limit of a whole minute. No wait cures it. One that has
 * no room at the moment is told *Rate limit reached*.
 */
const LARGER_THAN_LIMIT_TEXT = /\brequest too large\b.{0,300}\bmust be reduced\b/is;

/** Whether an overload is about the size of the line, and so is its answer. */
export const isLargerThanLimit = ({ status, body }: Omit<JudgedAnswer, "contentType">): boolean =>
  status === 429 && LARGER_THAN_LIMIT_TEXT.test(body.toString("utf8", 0, MAX_JUDGED_BYTES));

const ERROR_MEMBER = Buffer.from('"error"');
/** The beginning of an answer of OpenRouter that is an error. It may send white space while the model is at work. */
const ERROR_FIRST = /^\s*\{\s*"error"\s*:\s*\{/;

/**
 * Returns the status that an answer means, whose body is JSON. OpenRouter sends 200 once a model is at work. If that fails, the
 * body has nothing but an error, with the status as its `code`.
 */
export function meantStatus({ status, body }: Omit<JudgedAnswer, "contentType">): number {
  if (!isSuccess(status) || body.length > MAX_JUDGED_BYTES) return status;
  // Nearly every answer ends here, without a copy as text.
  if (!body.includes(ERROR_MEMBER)) return status;
  if (!ERROR_FIRST.test(body.toString("latin1"))) return status;
  // The last of equal keys counts, and that one may have any value.
  const code = (JSON.parse(body.toString()) as { error: { code?: unknown } | null }).error?.code;
  return Number.isInteger(code) && Number(code) >= 400 && Number(code) < 600
    ? Number(code)
    : status;
}

/** Whether the body has to be read to judge the answer. */
export function isWorthJudging({ status, contentType, bodyBytes }: AnswerStart): boolean {
  if (!isSuccess(status)) return status >= 300 && status < 500;
  const isShort = bodyBytes !== null && bodyBytes <= MAX_NO_SUCH_PATH_BYTES;
  return isShort || isPageType(contentType);
}

const isSuccess = (status: number) => status >= 200 && status < 300;
const isRedirect = (status: number) => status >= 300 && status < 400;
const isPageType = (contentType: string | null) => /^\s*text\/html\b/i.test(contentType ?? "");

interface Words {
  readonly code: string | null;
  readonly codes: readonly string[];
  readonly text: string;
  /** Whether the body is a page for people, from a proxy, a login, or a web interface beside the API. */
  readonly isPage: boolean;
}

/** Statuses under which a page says nothing about the line. A 400 or a 413 is about the line even as a page. */
const PAGE_STATUSES = new Set([401, 403, 404, 405, 407]);

function wordsOf({ status, contentType, body }: JudgedAnswer): Words {
  const text = body.toString("utf8", 0, MAX_JUDGED_BYTES);
  const looksLikePage = isPageType(contentType) || /^\s*<(?:!doctype html|html)\b/i.test(text);
  const isPage = looksLikePage && (status < 300 || PAGE_STATUSES.has(status));
  const codes = codesIn(text);
  return { code: codes.find(isPlainWord) ?? null, codes, text, isPage };
}

const isPlainWord = (code: string) => /^[a-z][\w.-]{0,63}$/i.test(code);

/** Returns `error.code` and `error.type`, or both from the top level, or from the first error of a list. */
function codesIn(text: string): string[] {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return [];
  }
  const top = (Array.isArray(value) ? value[0] : value) as { error?: unknown } | null;
  return [top?.error, top, (top as { detail?: unknown } | null)?.detail].flatMap((each) => {
    const { code, type } = (each ?? {}) as { code?: unknown; type?: unknown };
    return [code, type].filter((word) => typeof word === "string" && word !== "");
  }) as string[];
}

const isAboutModel = ({ codes, text }: Words) =>
  codes.some((code) => MODEL_CODE.test(code)) || MODEL_TEXT.test(text);

/** Whether a key has no access to one model; LiteLLM reports that with 401. */
const isAboutModelAccess = ({ codes, text }: Words) =>
  codes.some((code) => MODEL_CODE.test(code)) || MODEL_ACCESS_TEXT.test(text);

const isAboutContent = ({ codes, text }: Words) =>
  codes.some((code) => CONTENT_CODE.test(code)) || CONTENT_TEXT.test(text);
