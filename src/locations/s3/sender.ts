/** Sends requests of one call to a bucket. Each has a time limit, because a server may answer one byte a minute. */
import type { S3Client } from "@aws-sdk/client-s3";
import { type Clock, timeLimit } from "../../clock.ts";
import { LocationError } from "../location.ts";

/** A part of 8 MiB arrives within it at 14 kB/s. */
const MAX_REQUEST_MS = 600_000;
const PART_BYTES = 8 * 1024 * 1024;

interface Limit {
  readonly clock: Pick<Clock, "after">;
  readonly signal: AbortSignal;
  /** The bytes that go over the connection. */
  readonly bytes?: number;
}

/** Aborts a call that takes longer than its bytes may. A server may send one byte a minute. */
export async function inTime<T>(
  { clock, signal, bytes = 0 }: Limit,
  act: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const late = new LocationError("unavailable", "the server of the bucket takes too long");
  const limitMs = MAX_REQUEST_MS * Math.max(1, Math.ceil(bytes / PART_BYTES));
  using limit = timeLimit(clock, limitMs, late);
  try {
    return await act(AbortSignal.any([signal, limit.signal]));
  } catch (error) {
    throw limit.signal.aborted ? late : error;
  }
}

const NEVER = new AbortController().signal;

type Command = Parameters<S3Client["send"]>[0];

export class S3Sender {
  readonly #client: S3Client;
  readonly #clock: Pick<Clock, "after">;
  readonly #signal: AbortSignal;

  constructor(client: S3Client, clock: Pick<Clock, "after">, signal: AbortSignal) {
    this.#client = client;
    this.#clock = clock;
    this.#signal = signal;
  }

  /** Has the types of the client's own method. */
  readonly send: S3Client["send"] = ((command: Command) =>
    this.#send(command, this.#signal)) as S3Client["send"];

  /**
   * Sends a request that makes an object appear, and waits for its end. The server may still carry out a request that was cut,
   * after a look for the object has found none.
   */
  readonly sendToEnd: S3Client["send"] = (async (command: Command) => {
    this.#signal.throwIfAborted();
    return this.#send(command, NEVER);
  }) as S3Client["send"];

  #send(command: Command, signal: AbortSignal) {
    return inTime({ clock: this.#clock, signal }, (abortSignal) =>
      this.#client.send(command, { abortSignal }),
    );
  }
}
