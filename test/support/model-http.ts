/** Reads requests and writes answers for the model servers of the tests. */
import type { IncomingMessage, Server, ServerResponse } from "node:http";

export async function readBody(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString();
}

interface Prompt {
  readonly model: string;
  readonly user: string | null;
  readonly prompt: string;
}

/** Returns the last message, the `input` or the `prompt`, as text. */
export function readPrompt(body: string): Prompt {
  const { model, user, messages, input, prompt } = JSON.parse(body);
  const text = textOf(messages?.at(-1)?.content ?? input ?? prompt ?? "");
  return { model: String(model), user: typeof user === "string" ? user : null, prompt: text };
}

function textOf(content: unknown): string {
  if (typeof content === "string") return content;
  if (Array.isArray(content)) return content.map(textOf).join(" ");
  const { text, content: inner } = (content ?? {}) as { text?: unknown; content?: unknown };
  return textOf(text ?? inner ?? "");
}

export function sendJson(
  response: ServerResponse,
  status: number,
  body: unknown,
  headers: Readonly<Record<string, string>> = {},
): void {
  response
    .writeHead(status, { "content-type": "application/json", ...headers })
    .end(JSON.stringify(body));
}

/** Resets every connection, and resolves once the port is free. */
export async function closeServer(server: Server): Promise<void> {
  if (!server.listening) return;
  const { promise, resolve } = Promise.withResolvers<void>();
  server.close(() => resolve());
  server.closeAllConnections();
  await promise;
}
