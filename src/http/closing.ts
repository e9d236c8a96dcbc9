/**
 * Closes a listening server: it takes no new connection, lets answers finish, and ends each connection once no request is on
 * its way there. It must not cross a request that a proxy has sent already.
 */
import type { Server, ServerResponse } from "node:http";
import { Server as NetServer, type Socket } from "node:net";
import type { Duplex } from "node:stream";
import { type Clock, every } from "../clock.ts";
import { resetIfUnfinished } from "./connection.ts";

/** The time that answers have to finish when the server closes. */
export const CLOSE_GRACE_MS = 10_000;
const IDLE_SWEEP_MS = 50;
/**
 * A connection that had an answer so lately may have its next request on the way when the server closes. A close would cross
 * it, and a proxy does not send it again when it changes something. As its answer, the request gets `Connection: close`.
 */
const LATELY_MS = 100;

/** The connections, each with the time at which it was opened or had its last answer, as elapsed time. */
export type Connections = Map<Socket, number>;

/** The latest answer on each connection. */
export type Answers = WeakMap<Duplex, ServerResponse>;

interface Closing {
  readonly connections: Connections;
  readonly answers: Answers;
  readonly clock: Clock;
  readonly graceMs: number;
}

export async function closeServer(
  server: Server,
  { connections, answers, clock, graceMs }: Closing,
): Promise<void> {
  const closed = new Promise<void>((resolve) => {
    // An HTTP server would close all idle connections first.
    NetServer.prototype.close.call(server, () => resolve());
  });
  const sweepOnce = () => {
    const lateMs = clock.elapsedMs() - LATELY_MS;
    if ([...connections.values()].some((sinceMs) => sinceMs > lateMs)) return;
    server.closeIdleConnections();
    // Node takes a silent connection for a busy one. Browsers open such connections in advance, and they would delay
    // the close.
    for (const socket of connections.keys()) if (socket.bytesRead === 0) socket.destroy();
  };
  // A process that was busy reads what has come in before it closes anything.
  const sweepSoon = () => setImmediate(sweepOnce);
  sweepSoon();
  const endSweep = every(clock, IDLE_SWEEP_MS, sweepSoon);
  const owed = () => [...connections.keys()].flatMap((socket) => answers.get(socket) ?? []);
  // The answer says that the connection ends with it, so that a client or a proxy sends no other request there.
  for (const answer of owed()) answer.shouldKeepAlive = false;
  const cut = () => {
    owed().forEach(resetIfUnfinished);
    server.closeAllConnections();
  };
  const cancelCut = clock.after(graceMs, cut);
  await closed;
  endSweep();
  cancelCut();
  // It ends the timers of the HTTP server.
  server.close();
}
