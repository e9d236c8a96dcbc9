/** Reports the end of the connection of a request, and bounds its silence: not while the answer is awaited. */
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Socket } from "node:net";

/** The time for which a connection may be silent, unless a request is being carried out. */
export const SILENCE_MS = 300_000;
const KEEP_ALIVE_PROBE_MS = 30_000;

/** Calls `fn` once the answer is sent or its client is gone: at once if that has happened, as its event does not come again. */
export function whenClosed(outgoing: ServerResponse, fn: () => void): void {
  if (outgoing.closed) fn();
  else outgoing.once("close", fn);
}

/** Returns a signal that aborts when the client disconnects before it has its answer. */
export function abortedByClient(outgoing: ServerResponse): AbortSignal {
  const controller = new AbortController();
  whenClosed(outgoing, () => {
    if (!outgoing.writableFinished) controller.abort();
  });
  return controller.signal;
}

/** Lifts the limit on silence, because an answer may take longer. TCP's own probes find dead clients. */
export function allowSilence({ socket }: IncomingMessage): void {
  socket.setTimeout(0);
  socket.setKeepAlive(true, KEEP_ALIVE_PROBE_MS);
}

/**
 * Closes the connection of an answer of which its client has read nothing for too long. An answer whose next piece is still to
 * come may be silent for longer.
 */
export function closeUnread(outgoing: ServerResponse): void {
  outgoing.setTimeout(SILENCE_MS);
  outgoing.on("timeout", (socket: Socket) => {
    if (outgoing.writableLength > 0) socket.destroy();
    // Node does not ring again until something moves.
    else socket.setTimeout(SILENCE_MS);
  });
}
