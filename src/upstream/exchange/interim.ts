/**
 * Takes interim answers, such as `100 Continue`, out of the bytes that a connection reads.
 *
 * Requests go out without `expect`, but some servers and proxies send 100 all the same. HTTP allows it (RFC 9110, 15.2),
 * and undici drops the connection when it comes. undici skips the others by itself, but 100 may come behind one of them,
 * such as the 103 of a proxy. Only the bytes between a request and the head of its answer may be changed: the same words
 * within a body belong to the body.
 */
import type { Socket } from "node:net";
import { HeadersOverflowError } from "./undici.ts";

/** 101 changes the protocol, so it is final. */
const INTERIM = /^HTTP\/1\.[01] 1(?!01)\d\d[ \r]/;
const INTERIM_CHARACTERS = "HTTP/1.1 100 ".length;
/** The place of the first digit of the status, and the digit that every interim answer has there. */
const DIGIT_AT = "HTTP/1.1 ".length;
const INTERIM_DIGIT = "1".charCodeAt(0);
/** What every interim answer begins with. */
const STARTS = ["HTTP/1.1 1", "HTTP/1.0 1"];
/** The parser judges a longer head. */
const MAX_HEAD_BYTES = 8 * 1024;
/** All interim answers to one request. One each second for hours is less. A server may send them without end. */
const MAX_INTERIM_BYTES = 1024 * 1024;
const HEAD_END = "\r\n\r\n";
const NOTHING = Buffer.alloc(0);

export function skipInterimOn(socket: Socket): void {
  const read = socket.read.bind(socket);
  const write = socket.write.bind(socket);
  let awaitsHead = false;
  let held: Buffer = NOTHING;
  /** The bytes that have come before the head. */
  let readBytes = 0;
  socket.write = ((...args: Parameters<typeof write>) => {
    awaitsHead = true;
    return write(...args);
  }) as typeof write;
  socket.read = (size?: number) => {
    for (;;) {
      const chunk = read(size) as Buffer | null;
      if (!awaitsHead || chunk === null) return chunk;
      readBytes += chunk.length;
      const bytes = held.length === 0 ? chunk : Buffer.concat([held, chunk]);
      const rest = afterInterim(bytes);
      if (rest !== null && rest.length > 0) {
        awaitsHead = false;
        held = NOTHING;
        readBytes = 0;
        return rest;
      }
      held = rest ?? bytes;
      if (readBytes > MAX_INTERIM_BYTES) socket.destroy(new HeadersOverflowError());
    }
  };
}

/** Returns null while the bytes may still become one. */
function afterInterim(bytes: Buffer): Buffer | null {
  let rest = bytes;
  while (rest.length > 0) {
    // Most answers end the look here, and each one passes.
    if (rest.length > DIGIT_AT && rest[DIGIT_AT] !== INTERIM_DIGIT) return rest;
    const start = rest.toString("latin1", 0, INTERIM_CHARACTERS);
    if (start.length < INTERIM_CHARACTERS) return mayBecome(start) ? null : rest;
    if (!INTERIM.test(start)) return rest;
    const end = rest.indexOf(HEAD_END);
    if (end === -1) return rest.length > MAX_HEAD_BYTES ? rest : null;
    rest = rest.subarray(end + HEAD_END.length);
  }
  return rest;
}

const mayBecome = (start: string) =>
  STARTS.some((begin) => begin.startsWith(start.slice(0, begin.length)));
