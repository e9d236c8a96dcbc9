/**
 * Ends answers that come in tiny pieces, or behind interim answers without end, for what asks over Node's own HTTP client. An
 * answer of megabytes in chunks of a byte takes gigabytes, and every read of it blocks the event loop. The packages that use this
 * client (the SDK of S3, the sender of traces) do not show their requests, so all requests of the process are bounded.
 */
import { subscribe, unsubscribe } from "node:diagnostics_channel";
import type { ClientRequest, IncomingMessage } from "node:http";

/** The most answers before the answer (1xx). A flood of them is parsed as fast as it comes, and nothing else runs meanwhile. */
const MAX_INTERIM_ANSWERS = 16;
/**
 * Node takes some 5 µs for each chunk, and one read of 64 KiB has room for 11,000 chunks of a byte. The pieces of a real
 * server have kilobytes.
 */
const PIECES_PER_CHECK = 1_000;
const MIN_PIECE_BYTES = 64;
const REQUEST_CREATED = "http.client.request.created";

/** The same server would answer the same again. */
export class TinyPieces extends Error {
  override readonly name = "TinyPieces";
  readonly code = "ERR_TINY_PIECES";

  constructor() {
    super("the answer comes in pieces that are too small");
  }
}

/** Bounds the answers to all requests from now on. Further calls change nothing. */
export function boundPieces(): void {
  unsubscribe(REQUEST_CREATED, boundRequest);
  subscribe(REQUEST_CREATED, boundRequest);
}

function boundRequest(message: unknown): void {
  const { request } = message as { readonly request: ClientRequest };
  let count = 0;
  request.on("information", () => {
    count++;
    if (count > MAX_INTERIM_ANSWERS) request.destroy(new Error("too many interim answers"));
  });
  // The first read may hold the head and thousands of chunks, so it must not wait for the reader.
  request.prependOnceListener("response", boundAnswer);
}

/** Node's parser passes each piece through `push`. */
function boundAnswer(answer: IncomingMessage): void {
  const push = answer.push.bind(answer);
  let pieceCount = 0;
  let bytes = 0;
  answer.push = (piece: Buffer | null): boolean => {
    if (piece === null) return push(null);
    if (answer.destroyed) return false;
    bytes += piece.length;
    if (++pieceCount < PIECES_PER_CHECK) return push(piece);
    const isTiny = bytes < PIECES_PER_CHECK * MIN_PIECE_BYTES;
    pieceCount = 0;
    bytes = 0;
    if (!isTiny) return push(piece);
    answer.destroy(new TinyPieces());
    return false;
  };
}
