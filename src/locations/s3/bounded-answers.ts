/**
 * Bounds the answers of a server that is not ours. The SDK gathers every answer but the content of an object in memory, and
 * parses it in one go. An answer without end would fill the memory, and a long one would stop everything else meanwhile.
 * So would the content of an object that comes byte by byte (`resources/tiny-pieces.ts`).
 */
import { pipeline, Readable, Transform, type TransformCallback } from "node:stream";
import type { S3Client } from "@aws-sdk/client-s3";
import { boundPieces } from "../../resources/tiny-pieces.ts";

/** The largest answer in use is a list of 100 parts, some 40 kB. The SDK parses any 64 KiB within 50 ms. */
const MAX_ANSWER_BYTES = 64 * 1024;
/**
 * The page of a proxy has one at its beginning. For each of them the parser of the SDK goes through the whole answer: 1 MB of
 * them took it five minutes (3.1169.0).
 */
const DOCTYPE = /<!doctype/gi;

export function boundAnswers({ middlewareStack }: S3Client): void {
  // The SDK does not show its requests.
  boundPieces();
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
