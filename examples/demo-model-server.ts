/**
 * A small server in the shape of an OpenAI-compatible model server, without a model. It is for the demo, and for trying
 * batchd on a machine without a GPU:
 *
 *     npx node examples/demo-model-server.ts --port 9000
 *
 * The server behaves like a real one under load. It answers a few requests at a time, within 20 to 80 ms, and the
 * others wait. Every 60th request gets a 429, and a malformed request a 400. A chat may be streamed. `GET /demo/stats`
 * returns its counters.
 *
 * The HTTP server is the one of the tests; this file decides the answers.
 */
import { createHash, randomUUID } from "node:crypto";
import { setTimeout as delay } from "node:timers/promises";
import type { Given } from "../test/support/given.ts";
import { scriptOptions } from "../test/support/script-options.ts";
import { type SeenRequest, startUpstream } from "../test/support/upstream.ts";
import { answerTo } from "./demo-answers.ts";

const NOTICE = "demo model server (canned answers, no real model)";
const MODEL = "demo-model";
const SLOT_COUNT = 8;
const LATENCY_MS = { min: 20, max: 80 };
const REFUSE_EVERY = 60;
const RETRY_AFTER_MS = 120;
const STREAMED_WORD_EVERY_MS = 40;
const EMBEDDING_DIMENSIONS = 64;

type ChatAnswer = ReturnType<typeof chat>;

interface ModelRequest {
  readonly model?: string;
  readonly stream?: boolean;
  readonly messages?: readonly { readonly role: string; readonly content: string }[];
  readonly prompt?: string;
  readonly input?: string | readonly string[];
  readonly max_tokens?: number;
}

const stats = { requests: 0, answered: 0, refused: 0, turned_away: 0 };

const ENDPOINTS: Readonly<Record<string, (request: ModelRequest) => unknown>> = {
  "/v1/chat/completions": chat,
  "/v1/completions": complete,
  "/v1/embeddings": embed,
};

/** The requests beyond {@link SLOT_COUNT}, which wait for a slot. */
const waiting: (() => void)[] = [];
let busyCount = 0;

async function inSlot<T>(work: () => Promise<T>): Promise<T> {
  if (busyCount === SLOT_COUNT) await new Promise<void>((resolve) => waiting.push(resolve));
  else busyCount++;
  try {
    return await work();
  } finally {
    const next = waiting.shift();
    if (next === undefined) busyCount--;
    else next();
  }
}

async function replyTo({ method, path, body }: SeenRequest): Promise<Given> {
  if (path === "/demo/stats") return { body: stats };
  if (path === "/v1/models") return { body: modelList() };
  const answer = ENDPOINTS[path];
  if (answer === undefined) return refusal(404, `Invalid URL (${method} ${path})`, null);
  stats.requests++;
  if (stats.requests % REFUSE_EVERY === 0) return turnedAway();
  const request = parsed(body);
  if (request === null) return refusal(400, "The body is not JSON.", null);
  return inSlot(async () => {
    await delay(LATENCY_MS.min + Math.random() * (LATENCY_MS.max - LATENCY_MS.min));
    const fault = faultIn(request);
    if (fault !== null) return fault;
    stats.answered++;
    if (answer === chat && request.stream === true) return streamedReply(request);
    return { body: answer(request) };
  });
}

function parsed(body: string): ModelRequest | null {
  try {
    return JSON.parse(body) as ModelRequest;
  } catch {
    return null;
  }
}

function turnedAway(): Given {
  stats.turned_away++;
  const error = { message: "Busy, please try again.", type: "rate_limit_error", param: null };
  return {
    status: 429,
    body: { error: { ...error, code: "rate_limit_exceeded" } },
    headers: { "retry-after-ms": String(RETRY_AFTER_MS), "retry-after": "1" },
  };
}

function faultIn({ max_tokens, messages = [] }: ModelRequest): Given | null {
  if (max_tokens !== undefined && max_tokens < 1) {
    const message = `Invalid 'max_tokens': expected a value >= 1, but got ${max_tokens} instead.`;
    return refused(message, "max_tokens");
  }
  const isText =
    Array.isArray(messages) && messages.every((each) => typeof each?.content === "string");
  if (isText) return null;
  return refused(
    "Invalid 'messages': this server takes a list of messages with texts.",
    "messages",
  );
}

function refused(message: string, param: string): Given {
  stats.refused++;
  return refusal(400, message, param);
}

const refusal = (status: number, message: string, param: string | null): Given => ({
  status,
  body: { error: { message, type: "invalid_request_error", param, code: null } },
});

const unixSeconds = () => Math.floor(Date.now() / 1000);

const modelList = () => ({
  object: "list",
  data: [{ id: MODEL, object: "model", created: unixSeconds(), owned_by: "batchd-demo" }],
});

/** Estimates the tokens of a text: about four letters each. */
const tokenCount = (text: string) => Math.max(1, Math.round(text.length / 4));

function usage(promptText: string, answerText: string) {
  const prompt_tokens = tokenCount(promptText);
  const completion_tokens = tokenCount(answerText);
  return { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens };
}

function chat({ model = MODEL, messages = [] }: ModelRequest) {
  const textOf = (role: string) => messages.findLast((message) => message.role === role)?.content;
  const answer = answerTo(textOf("system") ?? "", textOf("user") ?? "");
  return {
    id: `chatcmpl-${randomUUID()}`,
    object: "chat.completion",
    created: unixSeconds(),
    model,
    choices: [{ index: 0, message: { role: "assistant", content: answer }, finish_reason: "stop" }],
    usage: usage(messages.map((message) => message.content).join(" "), answer),
  };
}

const streamedReply = (body: ModelRequest): Given => ({
  headers: { "content-type": "text/event-stream" },
  body: words(chat(body)),
});

async function* words({ id, created, model, choices }: ChatAnswer) {
  const event = (delta: object, finish_reason: string | null) => {
    const choice = { index: 0, delta, finish_reason };
    const chunk = { id, object: "chat.completion.chunk", created, model, choices: [choice] };
    return `data: ${JSON.stringify(chunk)}\n\n`;
  };
  for (const content of choices[0]?.message.content.match(/\S+\s*/g) ?? []) {
    yield event({ content }, null);
    await delay(STREAMED_WORD_EVERY_MS);
  }
  yield `${event({}, "stop")}data: [DONE]\n\n`;
}

function complete({ model = MODEL, prompt = "" }: ModelRequest) {
  const answer = answerTo("", prompt);
  return {
    id: `cmpl-${randomUUID()}`,
    object: "text_completion",
    created: unixSeconds(),
    model,
    choices: [{ index: 0, text: answer, logprobs: null, finish_reason: "stop" }],
    usage: usage(prompt, answer),
  };
}

function embed({ model = MODEL, input = "" }: ModelRequest) {
  const texts = typeof input === "string" ? [input] : input;
  const prompt_tokens = texts.reduce((sum, text) => sum + tokenCount(text), 0);
  return {
    object: "list",
    data: texts.map((text, index) => ({ object: "embedding", index, embedding: vectorOf(text) })),
    model,
    usage: { prompt_tokens, total_tokens: prompt_tokens },
  };
}

/** Returns a unit vector that depends on the text alone. */
function vectorOf(text: string): number[] {
  const bytes = createHash("sha512").update(text).digest().subarray(0, EMBEDDING_DIMENSIONS);
  const values = Array.from(bytes, (byte) => byte - 127.5);
  const length = Math.hypot(...values);
  return values.map((value) => value / length);
}

const withRequestId = (given: Given): Given => ({
  ...given,
  headers: { "x-request-id": `req_${randomUUID().replaceAll("-", "")}`, ...given.headers },
});

const USAGE = "npx node examples/demo-model-server.ts [--port NUMBER]";

const { values: options } = scriptOptions(USAGE, {
  options: { port: { type: "string", default: "0" } },
});
const server = await startUpstream({
  port: Number(options.port),
  answers: async (request) => withRequestId(await replyTo(request)),
}).catch((error: Error) => {
  process.stderr.write(`cannot listen on port ${options.port}: ${error.message}\n`);
  process.exit(1);
});
server.forget();
process.stdout.write(`${NOTICE} listening on ${server.url}\n`);
for (const signal of ["SIGINT", "SIGTERM"] as const)
  process.once(signal, () => void server.close());
