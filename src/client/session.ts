/** Gives each command of a client its session: the server, the time, and the signal of Ctrl-C. */
import { type Clock, systemClock } from "../clock.ts";
import { findServer, type ServerFlags } from "../config/client.ts";
import { complain } from "../terminal/lines.ts";
import { EXIT } from "./exit-codes.ts";
import { explained, interruption } from "./interruption.ts";
import { Server } from "./server.ts";

export interface JsonFlag {
  readonly json?: boolean;
}

export type ClientFlags = ServerFlags & JsonFlag;

export interface Session {
  readonly server: Server;
  readonly clock: Clock;
  /** Aborts at Ctrl-C, as do all requests to the server. */
  readonly signal: AbortSignal;
}

/** Resolves to the exit code of the command. */
export async function withSession(
  flags: ClientFlags,
  act: (session: Session) => Promise<number>,
): Promise<number> {
  const found = findServer(flags);
  if (!found.ok) {
    complain(found.problem);
    return EXIT.error;
  }
  const signal = interruption();
  const server = new Server(found.server, signal);
  return explained({
    act: () => act({ server, clock: systemClock, signal }),
    explain: (error) => server.explain(error),
    signal,
  });
}
