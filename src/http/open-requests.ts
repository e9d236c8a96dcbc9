/**
 * Limits the requests of a project that are open at a time, where keys tell projects apart. Each one keeps a connection, and a
 * client may send or read as slowly as it wants, so that a few projects could otherwise hold all connections of the server.
 */
import type { MiddlewareHandler } from "hono";
import { ClientLimit } from "../api/client-limit.ts";
import type { Callers } from "./auth.ts";
import { whenClosed } from "./connection.ts";
import type { AppEnv } from "./context.ts";

export interface OpenRequestsDeps {
  readonly callers: Callers;
  /** The most connections of clients at a time. */
  readonly maxConnections: number;
}

export function limitOpenRequests(deps: OpenRequestsDeps): MiddlewareHandler<AppEnv> {
  const requests = new ClientLimit({
    total: deps.maxConnections,
    ofProject: deps.maxConnections,
    message: "Too many requests of the project are open. Please try again.",
  });
  return async (c, next) => {
    // The web page reads the API without a connection of its own.
    const hasConnection = c.env.incoming.socket.remoteAddress !== undefined;
    if (deps.callers.anyone !== null || !hasConnection) return next();
    const request = requests.acquire(c.get("project"));
    whenClosed(c.env.outgoing, () => request[Symbol.dispose]());
    return next();
  };
}
