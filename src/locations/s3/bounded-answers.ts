/**
 * Bounds the answers of a server that is not ours. The SDK gathers every answer but the content of an object in memory, and
 * parses it in one go. An answer without end would fill the memory, and a long one would stop everything else meanwhile.
 * So would the content of an object that comes byte by byte.
 */
import { subscribe, unsubscribe } from "node:diagnostics_channel";
import type { ClientRequest, IncomingMessage } from "node:http";
import { pipeline, Readable, Transform, type TransformCallback } from "node:stream";
import type { S3Client } from "@aws-sdk/client-s3";
import { unavailable } from "../../blobs/s3-client.ts";

/** The largest answer in use is a list of 100 parts, some 40 kB. The SDK parses any 64 KiB within 50 ms. */
const MAX_ANSWER_BYTES = 64 * 1024;
/**
 * The page of a proxy has one at its beginning. For each of them the parser of the SDK goes through the whole answer: 1 MB of
 * them took it five minutes (3.1169.0).
 */
const DOCTYPE = /<!doctype/gi;

/** The most answers before the answer (1xx). A flood of them is parsed as fast as it comes, and nothing else runs meanwhile. */
const MAX_INTERIM_ANSWERS = 16;
/**
 * Node takes some 5 µs for each chunk, and one read of 64 KiB has room for 11,000 chunks of a byte. The pieces of a real
 * server have kilobytes.
 */
const PIECES_PER_CHECK = 1_000;
const MIN_PIECE_BYTES = 64;
const REQUEST_CREATED = "http.client.request.created";

export function boundAnswers({ middlewareStack }: S3Client): void {
  // The SDK does not show its requests. Once is enough for all clients.
  unsubscribe(REQUEST_CREATED, boundRequest);
  subscribe(REQUEST_CREATED, boundRequest);
  middlewareStack.add(
    (next, { commandName }) =>
      async (args) => {
        const result = await next(args);
        const response = result.response as { statusCode: number; body?: unknown };
        const isContent = commandName === "GetObjectCommand" && response.statusCode < 300;
        if (!isContent && response.body instanceof Readable) response.body = bounded(response.body);
        return result;
      },
    // The lowest step is next to the connection, below the one that reads the answer.
    { name: "boundAnswers", step: "deserialize", priority: "low" },
  );
}

function boundRequest(message: unknown): void {
  const { request } = message as { readonly request: ClientRequest };
  let count = 0;
  request.on("information", () => {
    count++;
    if (count > MAX_INTERIM_ANSWERS) request.destroy(new Error("too many interim answers"));
  });
  // The first read may hold the head and thousands of chunks, so it must not wait for the SDK.
  request.prependOnceListener("response", boundPieces);
}

/** Ends an answer that comes in tiny pieces. Node's parser passes each piece through `push`. */
function boundPieces(answer: IncomingMessage): void {
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
    // An error of the port ends the reading, which would go on over another connection.
    answer.destroy(unavailable(tinyPieces()));
    return false;
  };
}

const tinyPieces = () =>
  Object.assign(new Error("the answer comes in pieces that are too small"), {
    code: "ERR_TINY_PIECES",
  });

function bounded(body: Readable): Readable {
  // The reader of the answer gets the error.
  return pipeline(body, new BoundedAnswer(), () => {});
}

/** Gathers an answer, and passes it on when it is complete and harmless. */
class BoundedAnswer extends Transform {
  readonly #chunks: Buffer[] = [];
  #bytes = 0;

  override _transform(chunk: Buffer, _: BufferEncoding, done: TransformCallback): void {
    this.#bytes += chunk.length;
    this.#chunks.push(chunk);
    if (this.#bytes > MAX_ANSWER_BYTES) done(new Error("the answer is too long"));
    else done();
  }

  override _flush(done: TransformCallback): void {
    const answer = Buffer.concat(this.#chunks);
    const doctypes = answer.toString("latin1").match(DOCTYPE) ?? [];
    if (doctypes.length > 1) done(new Error("the answer is not one of a bucket"));
    else done(null, answer);
  }
}
