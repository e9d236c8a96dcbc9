/**
 * Takes interim answers, such as `100 Continue`, out of the bytes that a connection reads, and passes each head on as a whole.
 *
 * Requests go out without `expect`, but some servers and proxies send 100 all the same. HTTP allows it (RFC 9110, 15.2),
 * and undici drops the connection when it comes. undici skips the others by itself, but 100 may come behind one of them,
 * such as the 103 of a proxy. Only the bytes between a request and the head of its answer may be changed: the same words
 * within a body belong to the body.
 */
import type { Socket } from "node:net";

/** 101 changes the protocol, so it is final. */
const INTERIM = /^HTTP\/1\.[01] 1(?!01)\d\d[ \r]/;
const INTERIM_CHARACTERS = "HTTP/1.1 100 ".length;
/** The place of the first digit of the status, and the digit that every interim answer has there. */
const DIGIT_AT = "HTTP/1.1 ".length;
const INTERIM_DIGIT = "1".charCodeAt(0);
/** What every head begins with. The parser judges anything else. */
const START = Buffer.from("HTTP/1.");
/** The longest head that undici takes. It makes an error of each header behind that: 30 ms for 8 KiB of short ones. */
const MAX_HEAD_BYTES = 16 * 1024;
/** All interim answers to one request. One each second for hours is less. A server may send them without end. */
const MAX_INTERIM_BYTES = 1024 * 1024;
/** The ends of heads. The second one ends `\r\n\r\n`, too. Some servers leave out carriage returns, which the parser judges. */
const LF_LF = Buffer.from("\n\n");
const LF_CRLF = Buffer.from("\n\r\n");
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
      const { rest, isWhole } = afterInterim(
        held.length === 0 ? chunk : Buffer.concat([held, chunk]),
      );
      if (isWhole) {
        awaitsHead = false;
        held = NOTHING;
        readBytes = 0;
        return rest;
      }
      held = rest;
      if (held.length > MAX_HEAD_BYTES || readBytes > MAX_INTERIM_BYTES) socket.destroy(tooLong());
    }
  };
}

/** Leaves the interim answers out. What is left begins with the head of the answer, as a whole or as far as it has come. */
function afterInterim(bytes: Buffer): { readonly rest: Buffer; readonly isWhole: boolean } {
  let rest = bytes;
  while (rest.length > 0) {
    if (!mayBeHead(rest)) return { rest, isWhole: true };
    const end = endOfHead(rest);
    if (end === -1) break;
    if (!isInterim(rest)) return { rest, isWhole: true };
    rest = rest.subarray(end);
  }
  return { rest, isWhole: false };
}

function mayBeHead(bytes: Buffer): boolean {
  const count = Math.min(bytes.length, START.length);
  for (let n = 0; n < count; n++) if (bytes[n] !== START[n]) return false;
  return true;
}

/** The digit spares most answers the look at their words. */
const isInterim = (head: Buffer): boolean =>
  head[DIGIT_AT] === INTERIM_DIGIT && INTERIM.test(head.toString("latin1", 0, INTERIM_CHARACTERS));

/** Returns -1 for a head that has not come as a whole. */
function endOfHead(bytes: Buffer): number {
  const shortAt = bytes.indexOf(LF_LF);
  const longAt = bytes.indexOf(LF_CRLF);
  if (shortAt !== -1 && (longAt === -1 || shortAt < longAt)) return shortAt + LF_LF.length;
  return longAt === -1 ? -1 : longAt + LF_CRLF.length;
}

const tooLong = () =>
  Object.assign(new Error("the head of the answer is too long"), {
    code: "UND_ERR_HEADERS_OVERFLOW",
  });
