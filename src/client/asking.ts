/** Runs a command at a server. The SDK is loaded here, so that other commands start without it. */
import type { ClientFlags, Session } from "./session.ts";

export async function asking(
  flags: ClientFlags,
  act: (session: Session) => Promise<number>,
): Promise<number> {
  const { withSession } = await import("./session.ts");
  return withSession(flags, act);
}
