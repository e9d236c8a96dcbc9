/** The routes that pass a request through to a model server, for the OpenAPI document. */
import { z } from "zod";
import type { ZodOpenApiPathItemObject, ZodOpenApiPathsObject } from "zod-openapi";
import type { BatchEndpoint } from "./batch.ts";
import {
  BAD_REQUEST,
  BODY_TOO_LARGE,
  jsonBody,
  MODEL_NOT_FOUND,
  PROXY_FAILURES,
  passedOn,
} from "./openapi-answers.ts";
import { MODEL_EXAMPLE } from "./openapi-examples.ts";

const Body = z.looseObject({
  model: z
    .string()
    .optional()
    .describe("Left out or empty: the deployment in the path, or else `default_model`."),
});

type Fields = Readonly<Record<string, z.infer<ReturnType<typeof z.json>>>>;

interface PassThrough {
  readonly operationId: string;
  readonly summary: string;
  /** The fields of the body besides the model. */
  readonly asks: Fields;
  readonly answers: Fields;
  /** An example answer as server-sent events; null for an endpoint that does not stream. */
  readonly stream: string | null;
}

const passThrough = ({
  operationId,
  summary,
  asks,
  answers,
  stream,
}: PassThrough): ZodOpenApiPathItemObject => ({
  post: {
    operationId,
    summary,
    description:
      "Goes to an upstream of the model at once, ahead of the lines of batches, and ends there when the client leaves. The body is the upstream's to judge, and so is its answer the client's, whatever the status.",
    requestBody: jsonBody(Body, { model: MODEL_EXAMPLE.id, ...asks }),
    responses: {
      "200": passedOn(answers, stream),
      "400": BAD_REQUEST,
      "404": MODEL_NOT_FOUND,
      "413": BODY_TOO_LARGE,
      ...PROXY_FAILURES,
    },
  },
});

const QUESTION = "Why is the sky blue?";
const ANSWER = "Because air scatters blue light most.";

export const INTERACTIVE_PATHS = {
  "/v1/chat/completions": passThrough({
    operationId: "createChatCompletion",
    summary: "Ask a chat model",
    asks: { messages: [{ role: "user", content: QUESTION }], stream: false },
    answers: {
      object: "chat.completion",
      choices: [
        { index: 0, message: { role: "assistant", content: ANSWER }, finish_reason: "stop" },
      ],
    },
    stream: `data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"${ANSWER}"}}]}\n\ndata: [DONE]\n\n`,
  }),
  "/v1/completions": passThrough({
    operationId: "createCompletion",
    summary: "Let a model go on with a text",
    asks: { prompt: "The sky is" },
    answers: { object: "text_completion", choices: [{ index: 0, text: " blue." }] },
    stream:
      'data: {"object":"text_completion","choices":[{"index":0,"text":" blue."}]}\n\ndata: [DONE]\n\n',
  }),
  "/v1/embeddings": passThrough({
    operationId: "createEmbedding",
    summary: "Turn texts into vectors",
    asks: { input: [QUESTION] },
    answers: {
      object: "list",
      data: [{ object: "embedding", index: 0, embedding: [0.0023, -0.0091] }],
    },
    stream: null,
  }),
  "/v1/responses": passThrough({
    operationId: "createResponse",
    summary: "Ask for a response",
    asks: { input: QUESTION },
    answers: {
      object: "response",
      status: "completed",
      output: [
        { type: "message", role: "assistant", content: [{ type: "output_text", text: ANSWER }] },
      ],
    },
    stream: `event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"${ANSWER}"}\n\n`,
  }),
  "/v1/moderations": passThrough({
    operationId: "createModeration",
    summary: "Judge texts",
    asks: { input: QUESTION },
    answers: { results: [{ flagged: false }] },
    stream: null,
  }),
} as const satisfies ZodOpenApiPathsObject & Partial<Record<BatchEndpoint, unknown>>;
