/** Makes answers in the shape of vLLM's. They echo the prompt, so that a test can match them to their lines. */

export interface ModelRequest {
  readonly path: string;
  readonly model: string;
  readonly prompt: string;
  /** The number of the exchange, from 1. */
  readonly number: number;
}

type Json = Record<string, unknown>;

const CREATED = 1_750_000_000;
const wordCount = (text: string) => text.split(/\s+/).filter(Boolean).length + 1;

function chatUsage(prompt: string): Json {
  const [promptTokens, completionTokens] = [wordCount(prompt), wordCount(prompt) + 2];
  return {
    prompt_tokens: promptTokens,
    total_tokens: promptTokens + completionTokens,
    completion_tokens: completionTokens,
    prompt_tokens_details: { cached_tokens: 1 },
    completion_tokens_details: { reasoning_tokens: 2 },
  };
}

function responsesUsage(prompt: string): Json {
  const [inputTokens, outputTokens] = [wordCount(prompt), wordCount(prompt) + 2];
  return {
    input_tokens: inputTokens,
    input_tokens_details: { cached_tokens: 1 },
    output_tokens: outputTokens,
    output_tokens_details: { reasoning_tokens: 2 },
    total_tokens: inputTokens + outputTokens,
  };
}

const id = (prefix: string, { number }: ModelRequest) =>
  `${prefix}-${number.toString(16).padStart(32, "0")}`;

const head = (request: ModelRequest, prefix: string, object: string): Json => ({
  id: id(prefix, request),
  object,
  created: CREATED,
  model: request.model,
});

const images = ({ prompt }: ModelRequest): Json => ({
  created: CREATED,
  data: [{ revised_prompt: prompt, b64_json: "aW1hZ2U=" }],
});

const ANSWERS: Record<string, (request: ModelRequest) => Json> = {
  "/v1/chat/completions": (request) => ({
    ...head(request, "chatcmpl", "chat.completion"),
    choices: [
      {
        index: 0,
        message: {
          role: "assistant",
          content: `echo: ${request.prompt}`,
          refusal: null,
          tool_calls: [],
          reasoning_content: null,
        },
        logprobs: null,
        finish_reason: "stop",
        stop_reason: null,
      },
    ],
    usage: chatUsage(request.prompt),
    prompt_logprobs: null,
  }),
  "/v1/completions": (request) => ({
    ...head(request, "cmpl", "text_completion"),
    choices: [{ index: 0, text: `echo: ${request.prompt}`, logprobs: null, finish_reason: "stop" }],
    usage: chatUsage(request.prompt),
  }),
  "/v1/embeddings": (request) => ({
    ...head(request, "embd", "list"),
    data: [{ index: 0, object: "embedding", embedding: [request.prompt.length, 0.5, -1e-7] }],
    usage: {
      prompt_tokens: wordCount(request.prompt),
      total_tokens: wordCount(request.prompt),
      completion_tokens: 0,
      prompt_tokens_details: null,
    },
  }),
  "/v1/responses": (request) => ({
    id: id("resp", request),
    object: "response",
    created_at: CREATED,
    model: request.model,
    status: "completed",
    output: [
      {
        id: id("msg", request),
        type: "message",
        role: "assistant",
        status: "completed",
        content: [{ type: "output_text", text: `echo: ${request.prompt}`, annotations: [] }],
      },
    ],
    usage: responsesUsage(request.prompt),
  }),
  "/v1/moderations": (request) => ({
    id: id("modr", request),
    model: request.model,
    results: [
      {
        flagged: request.prompt.includes("flag me"),
        categories: { violence: false },
        category_scores: { violence: 1.2e-5 },
        echo: request.prompt,
      },
    ],
  }),
  "/v1/images/generations": images,
  "/v1/images/edits": images,
  "/v1/videos": (request) => ({
    id: id("video", request),
    object: "video",
    model: request.model,
    status: "completed",
    prompt: request.prompt,
  }),
};

/** Returns null for a path that the server does not have. */
export function answerTo(request: ModelRequest): Json | null {
  return ANSWERS[request.path]?.(request) ?? null;
}

/**
 * Returns a text in which every byte counts: integers over 2^53, odd key order, escapes, unknown fields, many lines.
 */
export const fragileJson = (prompt: string): string => `{
  "zeta": 9007199254740993,
  "2": [ 1.0, 1E2, -0, 123456789012345678901234567890 ],\r
  "1": "\\u00e9\\/\\ud83d\\ude00 \\n",
  "echo": ${JSON.stringify(prompt)},
\t"x_unknown": { "b": null, "a": 0.10 },
  "usage": { "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7 }
}
`;

/** A 404 must name the model, because batchd takes any other for a wrong address of the server. */
export const errorEnvelope = (status: number): Json => ({
  error: {
    message: status === 404 ? "told to answer 404: no such model" : `told to answer ${status}`,
    type: status === 429 ? "rate_limit_error" : "test_error",
    param: null,
    code: String(status),
  },
});

/** Returns a valid chat answer of exactly `bytes` bytes (at least some 200). */
export function answerOfSize(request: ModelRequest, bytes: number): string {
  const of = (padding: string) =>
    JSON.stringify({
      ...head(request, "chatcmpl", "chat.completion"),
      prompt: request.prompt,
      padding,
      usage: chatUsage(request.prompt),
    });
  return of("x".repeat(Math.max(0, bytes - of("").length)));
}
