/**
 * A small server with the shape of an OpenAI-compatible model server and no model behind it, for the
 * demo and for trying batchd on a machine without a GPU:
 *
 *     npx node examples/demo-model-server.ts --port 9000
 *
 * It behaves like a real one under load: a few requests are answered at a time and the others wait,
 * answers take 20 to 80 ms, every 20th request is turned away for a moment with a 429, and a request that makes no
 * sense gets a 400. A chat may be streamed. `GET /demo/stats` tells what it did.
 */
import { createHash, randomUUID } from "node:crypto";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { json } from "node:stream/consumers";
import { setTimeout as delay } from "node:timers/promises";
import { parseArgs } from "node:util";
import { answerTo } from "./demo-answers.ts";

const NOTICE = "demo model server (canned answers, no real model)";
const MODEL = "demo-model";
const SLOT_COUNT = 8;
const LATENCY_MS = { min: 20, max: 80 };
const TURN_AWAY_EVERY = 20;
const RETRY_AFTER_MS = 120;
const STREAMED_WORD_EVERY_MS = 40;
const EMBEDDING_DIMENSIONS = 64;

interface Reply {
  readonly status: number;
  readonly body: unknown;
  readonly headers?: Readonly<Record<string, string>>;
  /** What is sent in place of the body, word by word. */
  readonly streamed?: ChatAnswer;
}

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

/** At most {@link SLOT_COUNT} at once; the others wait their turn. */
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

async function replyTo(request: IncomingMessage): Promise<Reply> {
  const path = request.url ?? "/";
  if (path === "/demo/stats") return { status: 200, body: stats };
  if (path === "/v1/models") return { status: 200, body: modelList() };
  const answer = ENDPOINTS[path];
  if (answer === undefined) return refusal(404, `Invalid URL (${request.method} ${path})`, null);
  stats.requests++;
  if (stats.requests % TURN_AWAY_EVERY === 0) return turnedAway();
  const body = (await json(request)) as ModelRequest;
  return inSlot(async () => {
    await delay(LATENCY_MS.min + Math.random() * (LATENCY_MS.max - LATENCY_MS.min));
    const fault = faultIn(body);
    if (fault !== null) return fault;
    stats.answered++;
    if (answer === chat && body.stream === true) return streamedReply(body);
    return { status: 200, body: answer(body) };
  });
}

function turnedAway(): Reply {
  stats.turned_away++;
  const error = { message: "Busy, please try again.", type: "rate_limit_error", param: null };
  return {
    status: 429,
    body: { error: { ...error, code: "rate_limit_exceeded" } },
    headers: { "retry-after-ms": String(RETRY_AFTER_MS), "retry-after": "1" },
  };
}

function faultIn({ max_tokens }: ModelRequest): Reply | null {
  if (max_tokens === undefined || max_tokens >= 1) return null;
  stats.refused++;
  return refusal(
    400,
    `Invalid 'max_tokens': expected a value >= 1, but got ${max_tokens} instead.`,
    "max_tokens",
  );
}

const refusal = (status: number, message: string, param: string | null): Reply => ({
  status,
  body: { error: { message, type: "invalid_request_error", param, code: null } },
});

const unixSeconds = () => Math.floor(Date.now() / 1000);

const modelList = () => ({
  object: "list",
  data: [{ id: MODEL, object: "model", created: unixSeconds(), owned_by: "batchd-demo" }],
});

/** A fair guess: a token is about four letters. */
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

const streamedReply = (body: ModelRequest): Reply => ({
  status: 200,
  body: null,
  headers: { "content-type": "text/event-stream" },
  streamed: chat(body),
});

async function sendWords({ id, created, model, choices }: ChatAnswer, response: ServerResponse) {
  const send = (delta: object, finish_reason: string | null) => {
    const choice = { index: 0, delta, finish_reason };
    const chunk = { id, object: "chat.completion.chunk", created, model, choices: [choice] };
    response.write(`data: ${JSON.stringify(chunk)}\n\n`);
  };
  for (const content of choices[0]?.message.content.match(/\S+\s*/g) ?? []) {
    if (response.destroyed) return;
    send({ content }, null);
    await delay(STREAMED_WORD_EVERY_MS);
  }
  send({}, "stop");
  response.end("data: [DONE]\n\n");
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

/** A unit vector that depends on the text alone. */
function vectorOf(text: string): number[] {
  const bytes = createHash("sha512").update(text).digest().subarray(0, EMBEDDING_DIMENSIONS);
  const values = Array.from(bytes, (byte) => byte - 127.5);
  const length = Math.hypot(...values);
  return values.map((value) => value / length);
}

async function serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const reply = await replyTo(request).catch(() => refusal(400, "The body is not JSON.", null));
  // A body that was not looked at still has to be taken in, or the connection is stuck.
  request.resume();
  response.writeHead(reply.status, {
    "content-type": "application/json",
    "x-request-id": `req_${randomUUID().replaceAll("-", "")}`,
    ...reply.headers,
  });
  if (reply.streamed === undefined) response.end(JSON.stringify(reply.body));
  else await sendWords(reply.streamed, response);
}

const { values: options } = parseArgs({ options: { port: { type: "string", default: "0" } } });
const server = createServer((request, response) => void serve(request, response));
server.listen(Number(options.port), "127.0.0.1", () => {
  const { port } = server.address() as AddressInfo;
  process.stdout.write(`${NOTICE} listening on http://127.0.0.1:${port}/v1\n`);
});
for (const signal of ["SIGINT", "SIGTERM"] as const) {
  process.once(signal, () => {
    server.close();
    server.closeAllConnections();
  });
}
