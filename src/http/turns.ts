/**
 * Answers the requests of a connection one after the other. A client may send requests before it has the answer to the
 * first, and Node passes all of them on at once. Each could then hold a file, a place and memory for an answer that has to
 * wait for those before it, and one connection could take as much as hundreds. The limits on connections would mean nothing.
 */
import type { IncomingMessage, RequestListener, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import { whenClosed } from "./connection.ts";

/** The most requests that wait on a connection. The clients in use send none ahead. */
export const MAX_SENT_AHEAD = 32;

type Exchange = readonly [IncomingMessage, ServerResponse];

interface Turns {
  readonly listener: RequestListener;
  /** Whether another request of a connection may wait. It must be asked for each, before the listener has it. */
  readonly hasRoom: (socket: Socket) => boolean;
}

export function inTurn(answer: RequestListener): Turns {
  /** The waiting requests of each connection that has one under way. */
  const waiting = new WeakMap<Socket, Exchange[]>();

  const begin = (socket: Socket, [incoming, outgoing]: Exchange) => {
    whenClosed(outgoing, () => {
      const next = waiting.get(socket)?.shift();
      // No one waits for the answers of a connection that has ended.
      if (next === undefined || !socket.writable) waiting.delete(socket);
      else begin(socket, next);
    });
    answer(incoming, outgoing);
  };

  return {
    listener: (incoming, outgoing) => {
      const { socket } = incoming;
      const ahead = waiting.get(socket);
      if (ahead !== undefined) ahead.push([incoming, outgoing]);
      else {
        waiting.set(socket, []);
        begin(socket, [incoming, outgoing]);
      }
    },
    hasRoom: (socket) => (waiting.get(socket)?.length ?? 0) < MAX_SENT_AHEAD,
  };
}
