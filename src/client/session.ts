/** What every command of a client has: the server, the time, and the signal of Ctrl-C. */
import { type Clock, systemClock } from "../clock.ts";
import { findServer, type ServerFlags } from "../config/client.ts";
import { EXIT } from "./exit-codes.ts";
import { CommandFailure } from "./failure.ts";
import { Server } from "./server.ts";
import { complain, tolerateClosedOutput } from "./terminal.ts";

export interface ClientFlags extends ServerFlags {
  readonly json?: boolean;
}

export interface Session {
  readonly server: Server;
  readonly clock: Clock;
  /** Aborts at Ctrl-C. A second one ends the process at once. */
  readonly signal: AbortSignal;
}

/** Resolves to the exit code of the command. */
export async function withSession(
  flags: ClientFlags,
  act: (session: Session) => Promise<number>,
): Promise<number> {
  tolerateClosedOutput();
  const found = findServer(flags);
  if (!found.ok) {
    complain(found.problem);
    return EXIT.error;
  }
  const server = new Server(found.server);
  return explained(
    () => act({ server, clock: systemClock, signal: interruption() }),
    (error) => server.explain(error),
  );
}

/** Resolves to the exit code, and puts a failure into words. An error without words is a bug, so its stack matters. */
export async function explained(
  act: () => Promise<number>,
  explain: (error: unknown) => string | null,
): Promise<number> {
  try {
    return await act();
  } catch (error) {
    const text = error instanceof CommandFailure ? error.message : explain(error);
    if (text === null) throw error;
    complain(text);
    return EXIT.error;
  }
}

/** Returns a signal that aborts at the first Ctrl-C or SIGTERM. */
export function interruption(): AbortSignal {
  const controller = new AbortController();
  for (const name of ["SIGINT", "SIGTERM"] as const) {
    process.once(name, () => controller.abort());
  }
  return controller.signal;
}
