/**
 * Limits the requests of a project that are open at a time, where keys tell projects apart. Each one keeps a connection, and a
 * client may send or read as slowly as it wants, so that a few projects could otherwise hold all connections of the server.
 * A request whose client has left is open until its work has ended: a client may send the next one at once.
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
    if (deps.callers.anyone !== null || c.env.isInternal === true) return next();
    const request = requests.acquire(c.get("project"));
    try {
      await next();
    } finally {
      whenClosed(c.env.outgoing, () => request[Symbol.dispose]());
    }
  };
}
