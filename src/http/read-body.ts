/**
 * Reads a request body as a whole. The memory budget counts every byte that has come. Without room the reader pauses,
 * and after some seconds the client gets an error that asks it to come back. A client that is slower than any real
 * connection gets an error too, because its bytes take the room of others.
 */
import type { IncomingMessage } from "node:http";
import { noRoomFor, ROOM_WAIT_MS } from "../api/room-wait.ts";
import { type Cancel, type Clock, every } from "../clock.ts";
import { PublicError } from "../errors.ts";
import type { Room } from "../resources/memory-budget.ts";
import { Gathered } from "../text/gathered.ts";
import { truncate } from "../text/truncate.ts";

/** The time for which a client may be slower than the minimum. */
const SLOW_START_MS = 30_000;
const MIN_BYTES_PER_SECOND = 16 * 1024;
const RATE_CHECK_MS = 1_000;

export interface BodyLimits {
  readonly maxBytes: number;
  /** The room that holds the body until its owner releases it. */
  readonly room: Room;
  readonly clock: Clock;
}

/** Some clients name the charset in this header. Their bodies are not compressed. */
const COMPRESSION = /\b(?:gzip|deflate|compress|br|zstd)\b/i;

/** Throws for a compressed body. Otherwise its bytes would pass for broken JSON, or for a broken form. */
export function assertNotCompressed({ headers }: IncomingMessage): void {
  const coding = headers["content-encoding"] ?? "";
  if (!COMPRESSION.test(coding)) return;
  throw new PublicError(
    "invalid_request",
    `The body came with 'Content-Encoding: ${truncate(coding)}', and this server does not unpack requests. (HINT: Send the body as it is. The input of a batch may itself be a file that is packed with gzip or zstd.)`,
    { param: "Content-Encoding" },
  );
}

export async function readBody(incoming: IncomingMessage, limits: BodyLimits): Promise<Buffer> {
  assertNotCompressed(incoming);
  return new Promise((resolve, reject) => {
    new BodyReader(incoming, limits, { resolve, reject }).start();
  });
}

interface Ends {
  readonly resolve: (body: Buffer) => void;
  readonly reject: (error: PublicError) => void;
}

class BodyReader {
  readonly #incoming: IncomingMessage;
  readonly #limits: BodyLimits;
  readonly #ends: Ends;
  readonly #body: Gathered;
  readonly #startedAtMs: number;
  #waitedMs = 0;
  /** The time at which the wait for room began; null while there is room. */
  #waitingSinceMs: number | null = null;
  #endRateCheck: Cancel | null = null;

  constructor(incoming: IncomingMessage, limits: BodyLimits, ends: Ends) {
    this.#incoming = incoming;
    this.#limits = limits;
    this.#startedAtMs = limits.clock.elapsedMs();
    this.#ends = ends;
    this.#body = new Gathered(Number(incoming.headers["content-length"] ?? 0));
  }

  start(): void {
    if (this.#incoming.destroyed) {
      this.#breakOff();
      return;
    }
    this.#endRateCheck = every(this.#limits.clock, RATE_CHECK_MS, this.#checkRate);
    this.#incoming.on("data", this.#take);
    this.#incoming.on("end", this.#finish);
    this.#incoming.on("error", this.#breakOff);
    this.#incoming.on("close", this.#breakOff);
  }

  readonly #take = (chunk: Buffer): void => {
    const { maxBytes, room } = this.#limits;
    if (this.#body.length + chunk.length > maxBytes) {
      this.#fail(bodyTooLarge(maxBytes));
      return;
    }
    this.#body.add(chunk);
    const free = room.add(chunk.length);
    if (free === null) return;
    this.#incoming.pause();
    this.#waitingSinceMs = this.#limits.clock.elapsedMs();
    void free.then(this.#readOn);
  };

  readonly #readOn = (): void => {
    if (this.#waitingSinceMs === null) return;
    this.#waitedMs += this.#limits.clock.elapsedMs() - this.#waitingSinceMs;
    this.#waitingSinceMs = null;
    this.#incoming.resume();
  };

  readonly #checkRate = (): void => {
    const nowMs = this.#limits.clock.elapsedMs();
    if (this.#waitingSinceMs !== null) {
      if (nowMs - this.#waitingSinceMs >= ROOM_WAIT_MS)
        this.#fail(noRoomFor("requests", this.#limits.room));
      return;
    }
    const allowedMs = SLOW_START_MS + (1000 * this.#body.length) / MIN_BYTES_PER_SECOND;
    if (nowMs - this.#startedAtMs - this.#waitedMs >= allowedMs) this.#fail(tooSlow());
  };

  readonly #finish = (): void => {
    this.#stop();
    this.#ends.resolve(this.#body.take());
  };

  readonly #breakOff = (cause?: unknown): void => {
    this.#fail(
      new PublicError("invalid_request", "The request ended before its last byte.", { cause }),
    );
  };

  #fail(error: PublicError): void {
    this.#stop();
    this.#body.take();
    this.#limits.room.release();
    this.#ends.reject(error);
  }

  #stop(): void {
    this.#endRateCheck?.();
    this.#waitingSinceMs = null;
    this.#incoming.off("data", this.#take);
    this.#incoming.off("end", this.#finish);
    this.#incoming.off("error", this.#breakOff);
    this.#incoming.off("close", this.#breakOff);
  }
}

const bodyTooLarge = (maxBytes: number) =>
  new PublicError("body_too_large", `The JSON body is larger than the ${maxBytes} bytes allowed.`);

const tooSlow = () =>
  new PublicError("request_timeout", "The request came too slowly and was given up.");
