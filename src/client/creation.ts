/** Makes a batch at a server that may be another one than batchd. */
import { randomUUID } from "node:crypto";
import { APIError } from "openai";
import { cancelIgnorant } from "./left-behind.ts";
import type { Server } from "./server.ts";
import { isOfBatchd, type ShownBatch } from "./shown-batch.ts";

interface Terms {
  /** Names what only batchd knows of the request; empty for nothing. */
  readonly extensions: string;
  /** A repeated request must not make a second batch, which would cost as much again. */
  readonly idempotencyKey?: string;
}

export async function createBatch(
  server: Server,
  body: object,
  { extensions, idempotencyKey = randomUUID() }: Terms,
): Promise<ShownBatch> {
  const headers = { "idempotency-key": idempotencyKey };
  const batch = await server.openai
    .post<ShownBatch>("/batches", { body, headers })
    .catch((error: unknown) => {
      throw isUnknownField(error) ? server.lacks(extensions, error) : error;
    });
  if (extensions !== "" && !isOfBatchd(batch)) await cancelIgnorant(server, batch.id, extensions);
  return batch;
}

const isUnknownField = (error: unknown) =>
  error instanceof APIError && error.status === 400 && error.param === "x_batchd";
