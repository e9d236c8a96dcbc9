/** Reports the end of the connection of a request, and lets it be silent for as long as the answer takes. */
import type { IncomingMessage, ServerResponse } from "node:http";

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
