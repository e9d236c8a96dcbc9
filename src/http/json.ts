/** Reads small JSON bodies, and writes answers in ASCII, so that no client can split a character. */
import type { ContentfulStatusCode } from "hono/utils/http-status";
import { z } from "zod";
import { jsonBodyError, PublicError } from "../errors.ts";
import type { Room } from "../resources/memory-budget.ts";
import { COMMA, OPEN_ARRAY, OPEN_OBJECT } from "../text/json-tokens.ts";
import { assertStillGood } from "./auth.ts";
import { parseBody } from "./body.ts";
import type { AppContext } from "./context.ts";
import { assertKnownParams } from "./query.ts";
import { readBody } from "./read-body.ts";

/** The longest body. JSON.parse and the schemas block the event loop, and this much takes them some milliseconds. */
const BODY_MAX_BYTES = 128 * 1024;

/** The most values of a longer body, twice those of a list. `JSON.parse` takes 175 ms for a megabyte of brackets. */
const MAX_VALUES = 20_000;

export const JSON_TYPE = { "content-type": "application/json" } as const;

const HEX = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, "0"));

export const toAsciiJson = (value: unknown): string =>
  JSON.stringify(value).replaceAll(/[\u007f-\uffff]+/g, escaped);

/**
 * Escapes a run of characters. A text in another alphabet is one run, and a call for each character would take five
 * times as long.
 */
function escaped(run: string): string {
  let text = "";
  for (let at = 0; at < run.length; at++) {
    const unit = run.charCodeAt(at);
    text += `\\u${HEX[unit >> 8]}${HEX[unit & 0xff]}`;
  }
  return text;
}

export const answerJson = (c: AppContext, value: unknown, status: ContentfulStatusCode = 200) =>
  answerJsonText(c, toAsciiJson(value), status);

export const answerJsonText = (c: AppContext, json: string, status: ContentfulStatusCode = 200) =>
  c.body(json, status, JSON_TYPE);

/** Reads the body as JSON, whatever its content type is. */
export async function readJson(c: AppContext): Promise<unknown> {
  using room = roomFor(c);
  return parseJson(await readBodyInto(room, c, BODY_MAX_BYTES));
}

/**
 * Reads a body that may be longer because of its list `param`, into memory that the caller releases once it needs nothing more
 * of the body.
 */
export async function readJsonInto(
  room: Room,
  c: AppContext,
  { maxBytes, param }: { readonly maxBytes: number; readonly param: string },
): Promise<unknown> {
  const body = await readBodyInto(room, c, maxBytes);
  if (body.length > BODY_MAX_BYTES) assertFewValues(body, param);
  return parseJson(body);
}

/** Counts what stands before each value. A list of ids has it nowhere else. */
function assertFewValues(body: Buffer, param: string): void {
  let count = 0;
  for (const byte of body) {
    if (byte !== COMMA && byte !== OPEN_ARRAY && byte !== OPEN_OBJECT) continue;
    if (++count > MAX_VALUES) throw tooManyValues(param);
  }
}

const tooManyValues = (param: string) =>
  new PublicError(
    "array_too_long",
    `Invalid '${param}': the body has too many values, more than ${MAX_VALUES}.`,
    { param },
  );

/**
 * Reads the body, and waits for a turn: the last bytes of hundreds of bodies may come in the same moment, and each takes up to
 * 20 ms to parse. The body is refused when the key was revoked before that. A client may hold it back for half a minute, and it
 * could make another key.
 */
export async function readBodyInto(room: Room, c: AppContext, maxBytes: number): Promise<Buffer> {
  const body = await readBody(c.env.incoming, { maxBytes, room, clock: c.get("clock") });
  await c.get("turn")();
  assertStillGood(c);
  return body;
}

function parseJson(bytes: Uint8Array): unknown {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (cause) {
    throw jsonBodyError(bytes, cause);
  }
}

/**
 * Refuses a request that says more than its path. Clients that have nothing to say send no body, `{}`, or an empty one under a
 * JSON content type.
 */
export async function assertNoOptions(c: AppContext): Promise<void> {
  assertKnownParams(c, []);
  using room = roomFor(c);
  const bytes = await readBodyInto(room, c, BODY_MAX_BYTES);
  if (bytes.length > 0) parseBody(z.object({}), parseJson(bytes));
}

/** Opens the memory of a request for its body. The caller must release it. */
export const roomFor = (c: AppContext): Room => c.get("memory").open("requests", c.get("project"));
