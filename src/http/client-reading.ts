/**
 * Bounds the time for which the bytes of clients are parsed within one turn of the event loop.
 *
 * Node parses all that has come: up to 64 KiB of each of a thousand connections, or 2 MB of one that sends fast. 64 KiB have
 * room for 3,600 requests or 11,000 chunks. A hundred connections that sent requests ahead kept the event loop for 11 s and
 * took 1 GB. So all connections stop reading once a turn has had its time, and go on in the next one. Those that have waited
 * for the longest time are read first.
 *
 * `parsed` has to be called within the parser, for each request and each piece of a body that costs time.
 */
import type { IncomingMessage } from "node:http";
import type { Socket } from "node:net";
import type { Clock } from "../clock.ts";

/** A turn that is no longer pauses no connection. That costs a microsecond for each, and there may be thousands. */
const PARSING_MS = 15;
/** What the parser takes for an error. It reads nothing more then. */
const STOP = -1;

type OnIncoming = (incoming: IncomingMessage, shouldKeepAlive: boolean) => number;

export class ClientReading {
  readonly #clock: Pick<Clock, "elapsedMs">;
  /** The connections. Those that were parsed most lately come last. */
  readonly #sockets = new Set<Socket>();
  readonly #parsed = new Set<Socket>();
  #stopped: Socket[] = [];
  /** The end of the time in this turn; null until something is parsed, infinite once all connections have stopped. */
  #endsAtMs: number | null = null;

  constructor(clock: Pick<Clock, "elapsedMs">) {
    this.#clock = clock;
  }

  /** Follows a connection. It is closed when a request comes for which `hasRoom` is false. */
  add(socket: Socket, hasRoom: () => boolean): void {
    this.#sockets.add(socket);
    socket.once("close", () => this.#sockets.delete(socket));
    const { parser } = socket as Socket & { readonly parser: { onIncoming: OnIncoming } };
    const { onIncoming } = parser;
    parser.onIncoming = (incoming, shouldKeepAlive) => {
      if (!hasRoom()) {
        socket.destroy();
        return STOP;
      }
      this.parsed(socket);
      return onIncoming(incoming, shouldKeepAlive);
    };
  }

  /** `readsOn`: whether Node goes on reading from this connection. It pauses and resumes it by itself otherwise. */
  parsed(socket: Socket, readsOn = true): void {
    const nowMs = this.#clock.elapsedMs();
    if (this.#endsAtMs === null) {
      this.#endsAtMs = nowMs + PARSING_MS;
      setImmediate(this.#startTurn);
    }
    this.#parsed.add(socket);
    if (nowMs >= this.#endsAtMs) this.#stop(readsOn ? null : socket);
  }

  #stop(pausedSocket: Socket | null): void {
    this.#endsAtMs = Number.POSITIVE_INFINITY;
    for (const socket of this.#parsed) {
      if (this.#sockets.delete(socket)) this.#sockets.add(socket);
    }
    // A connection that is paused already waits for the reader of its request.
    this.#stopped = [...this.#sockets].filter(
      (socket) => socket !== pausedSocket && !socket.isPaused(),
    );
    for (const socket of this.#stopped) socket.pause();
  }

  readonly #startTurn = (): void => {
    this.#endsAtMs = null;
    this.#parsed.clear();
    for (const socket of this.#stopped) socket.resume();
    this.#stopped = [];
  };
}
