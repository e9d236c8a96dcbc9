/** Runs a command at a server. The SDK is loaded here, so that other commands start without it. */
import type { ClientFlags, Session } from "./session.ts";

/** Takes the exit code of a command once it has run. */
export type Finish = (exitCode: Promise<number>) => Promise<void>;

export type Ask = (flags: ClientFlags, act: (session: Session) => Promise<number>) => Promise<void>;

export const asking =
  (finish: Finish): Ask =>
  (flags, act) =>
    finish(import("./session.ts").then(({ withSession }) => withSession(flags, act)));
