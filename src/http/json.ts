/** JSON in and out: small bodies, read whole; answers in ASCII, so that no client can cut a character in two. */
import type { IncomingMessage } from "node:http";
import type { ContentfulStatusCode } from "hono/utils/http-status";
import { jsonBodyError, PublicError } from "../errors.ts";
import type { AppContext } from "./context.ts";

const BODY_MAX_BYTES = 1024 * 1024;

export const JSON_TYPE = { "content-type": "application/json" } as const;

export const toAsciiJson = (value: unknown): string =>
  JSON.stringify(value).replaceAll(
    /[\u007f-\uffff]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );

export const answerJson = (c: AppContext, value: unknown, status: ContentfulStatusCode = 200) =>
  answerJsonText(c, toAsciiJson(value), status);

export const answerJsonText = (c: AppContext, json: string, status: ContentfulStatusCode = 200) =>
  c.body(json, status, JSON_TYPE);

/** The body as a value, whatever its content type says. */
export async function readJson(incoming: IncomingMessage): Promise<unknown> {
  const bytes = await readBody(incoming, BODY_MAX_BYTES);
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (cause) {
    throw jsonBodyError(cause);
  }
}

/** The whole body, if it is no longer than that. */
export async function readBody(incoming: IncomingMessage, maxBytes: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  try {
    for await (const chunk of incoming.iterator({ destroyOnReturn: false })) {
      chunks.push(chunk as Buffer);
      bytes += (chunk as Buffer).length;
      if (bytes > maxBytes) throw bodyTooLarge(maxBytes);
    }
  } catch (cause) {
    if (cause instanceof PublicError) throw cause;
    throw new PublicError("invalid_request", "The request ended before its last byte.", { cause });
  }
  return Buffer.concat(chunks);
}

const bodyTooLarge = (maxBytes: number) =>
  new PublicError("body_too_large", `The JSON body is larger than the ${maxBytes} bytes allowed.`);
