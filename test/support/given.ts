/** Has ready-made answers for tests that answer requests themselves. */
import { once } from "node:events";
import type { ServerResponse } from "node:http";

export interface Given {
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
  /** The body: a text as it is, pieces as they come, any other value as JSON. */
  readonly body?: unknown;
  /** Whether the connection breaks in the middle of the body. */
  readonly breaks?: boolean;
}

const chatAnswer = (content: string) => ({
  id: "chatcmpl-1",
  object: "chat.completion",
  choices: [{ index: 0, message: { role: "assistant", content }, finish_reason: "stop" }],
  usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
});

export const GOOD: Given = { body: chatAnswer("Hi") };

export const refusal = (status: number, error: object): Given => ({ status, body: { error } });

const isInPieces = (body: unknown): body is AsyncIterable<string> =>
  typeof body === "object" && body !== null && Symbol.asyncIterator in body;

export async function give(response: ServerResponse, given: Given): Promise<void> {
  const { status = 200, headers, body, breaks = false } = given;
  const type = typeof body === "string" ? "text/plain" : "application/json";
  response.writeHead(status, { "content-type": type, ...headers });
  if (!isInPieces(body)) {
    const text = typeof body === "string" ? body : JSON.stringify(body);
    if (breaks) response.write(text.slice(0, text.length / 2), () => response.destroy());
    else response.end(text);
    return;
  }
  for await (const piece of body) {
    if (response.destroyed) return;
    if (!response.write(piece))
      await Promise.race([once(response, "drain"), once(response, "close")]);
  }
  response.end();
}

interface Answerable {
  readonly response: ServerResponse;
}

/** Ends an exchange with one JSON value. */
export const answerWith = ({ response }: Answerable, body: unknown, status = 200): void =>
  void give(response, { status, body });

/** Ends an exchange with the answer of a chat model. */
export const answerChat = (exchange: Answerable): void => answerWith(exchange, chatAnswer("Hello"));
