/**
 * Bounds the answers of a server that is not ours. The SDK gathers every answer but the content of an object in memory, so
 * an answer without end would fill it.
 */
import { pipeline, Readable, Transform } from "node:stream";
import type { S3Client } from "@aws-sdk/client-s3";

/** The largest answer in use is a list of 1,000 parts, some 400 kB. The SDK parses an answer in one go. */
const MAX_ANSWER_BYTES = 1024 * 1024;

export function boundAnswers({ middlewareStack }: S3Client): void {
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
  let bytes = 0;
  const limit = new Transform({
    transform(chunk: Buffer, _, done) {
      bytes += chunk.length;
      if (bytes > MAX_ANSWER_BYTES) done(new Error("the answer is too long"));
      else done(null, chunk);
    },
  });
  // The reader of `limit` gets the error.
  return pipeline(body, limit, () => {});
}
