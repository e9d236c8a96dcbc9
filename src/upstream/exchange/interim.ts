/**
 * Takes `100 Continue` out of the bytes that a connection reads.
 *
 * Requests go out without `expect`, but some servers and proxies send this answer all the same. HTTP allows it (RFC
 * 9110, 15.2), and undici drops the connection when it comes. undici skips other interim answers by itself. Only the
 * bytes between a request and the head of its answer may be changed: the same words within a body belong to the body.
 */
import type { Socket } from "node:net";
import type { Connector } from "./undici.ts";

const CONTINUE = /^HTTP\/1\.[01] 100[ \r]/;
const CONTINUE_CHARACTERS = "HTTP/1.1 100 ".length;
/** The parser judges a longer head. */
const MAX_HEAD_BYTES = 8 * 1024;
const HEAD_END = "\r\n\r\n";
const NOTHING = Buffer.alloc(0);

export const skippingContinue =
  (connect: Connector): Connector =>
  (options, callback) =>
    connect(options, (...result) => {
      const [error, socket] = result;
      if (error === null && socket !== null) skipContinueOn(socket);
      callback(...result);
    });

function skipContinueOn(socket: Socket): void {
  const read = socket.read.bind(socket);
  const write = socket.write.bind(socket);
  let awaitsHead = false;
  let held: Buffer = NOTHING;
  socket.write = ((...args: Parameters<typeof write>) => {
    awaitsHead = true;
    return write(...args);
  }) as typeof write;
  socket.read = (size?: number) => {
    const chunk = read(size) as Buffer | null;
    if (!awaitsHead || chunk === null) return chunk;
    const bytes = held.length === 0 ? chunk : Buffer.concat([held, chunk]);
    const rest = afterContinue(bytes);
    held = rest ?? bytes;
    if (rest === null || rest.length === 0) return null;
    awaitsHead = false;
    held = NOTHING;
    return rest;
  };
}

/** Returns null while the bytes may still become one. */
function afterContinue(bytes: Buffer): Buffer | null {
  let rest = bytes;
  while (rest.length > 0) {
    const start = rest.toString("latin1", 0, CONTINUE_CHARACTERS);
    if (start.length < CONTINUE_CHARACTERS) return mayBecome(start) ? null : rest;
    if (!CONTINUE.test(start)) return rest;
    const end = rest.indexOf(HEAD_END);
    if (end === -1) return rest.length > MAX_HEAD_BYTES ? rest : null;
    rest = rest.subarray(end + HEAD_END.length);
  }
  return rest;
}

const mayBecome = (start: string) =>
  "HTTP/1.1 100 ".startsWith(start) || "HTTP/1.0 100 ".startsWith(start);
