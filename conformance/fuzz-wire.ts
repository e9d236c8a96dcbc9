/** Sends one request on a connection of its own, however broken, and reads the answers. */
import { connect } from "node:net";
import type { FuzzRequest } from "./fuzz-requests.ts";

export interface FuzzAnswer {
  readonly status: number;
  readonly headers: ReadonlyMap<string, string>;
  readonly body: string;
}

/** The time to wait for an answer to a request that may be incomplete. */
const DOUBT_MS = 40;
const PATIENCE_MS = 10_000;

export async function exchange(url: string, request: FuzzRequest): Promise<FuzzAnswer[]> {
  const { hostname, port } = new URL(url);
  const socket = connect(Number(port), hostname);
  const pieces: Buffer[] = [];
  socket.on("data", (piece: Buffer) => pieces.push(piece));
  socket.on("error", () => {});
  const { promise: closed, resolve } = Promise.withResolvers<void>();
  socket.once("close", () => resolve());
  socket.write(request.bytes);
  const timer = setTimeout(
    () => (request.isWhole ? socket.destroy() : socket.end()),
    request.isWhole ? PATIENCE_MS : DOUBT_MS,
  );
  const last = setTimeout(() => socket.destroy(), PATIENCE_MS);
  await closed;
  clearTimeout(timer);
  clearTimeout(last);
  return answersIn(Buffer.concat(pieces).toString("latin1"), request.isHead);
}

/**
 * Returns all answers but the interim ones. The first one may answer a HEAD, and then has the length of a body that
 * does not follow.
 */
function answersIn(text: string, isHead: boolean): FuzzAnswer[] {
  const answers: FuzzAnswer[] = [];
  for (let rest = text; rest !== ""; ) {
    const headEnd = rest.indexOf("\r\n\r\n");
    const head = headEnd === -1 ? rest : rest.slice(0, headEnd);
    const [statusLine = "", ...lines] = head.split("\r\n");
    const status = Number(/^HTTP\/1\.1 (\d{3})/.exec(statusLine)?.[1] ?? Number.NaN);
    const headers = new Map(lines.map(parseHeader));
    const behind = rest.slice(head.length + "\r\n\r\n".length);
    const isBodiless = status < 200 || (isHead && isAnswerOrNothing(behind));
    const { body, bytes } = isBodiless ? NO_BODY : bodyAt(headers, behind);
    if (!(status < 200)) answers.push({ status, headers, body });
    rest = behind.slice(bytes);
  }
  return answers;
}

const isAnswerOrNothing = (text: string) => text === "" || text.startsWith("HTTP/1.1 ");

function parseHeader(line: string): [name: string, value: string] {
  const colon = line.indexOf(":");
  return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()];
}

interface Body {
  readonly body: string;
  /** Returns the bytes that the answer takes on the wire. */
  readonly bytes: number;
}

const NO_BODY: Body = { body: "", bytes: 0 };

function bodyAt(headers: ReadonlyMap<string, string>, text: string): Body {
  if (headers.get("transfer-encoding") === "chunked") return chunkedBodyAt(text);
  const bytes = Number(headers.get("content-length") ?? 0);
  return { body: text.slice(0, bytes), bytes };
}

/** A body is cut where another request deletes the batch that it shows. */
function chunkedBodyAt(text: string): Body {
  let body = "";
  for (let at = 0; ; ) {
    const sizeEnd = text.indexOf("\r\n", at);
    if (sizeEnd === -1) return { body, bytes: text.length };
    const size = Number.parseInt(text.slice(at, sizeEnd), 16);
    const start = sizeEnd + 2;
    if (!(size > 0)) return { body, bytes: start + 2 };
    body += text.slice(start, start + size);
    at = start + size + 2;
  }
}
