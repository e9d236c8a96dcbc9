/**
 * Authenticates a request by its key. A key must never reach a log or an error; the message about a refused key has it
 * masked.
 */
import type { MiddlewareHandler } from "hono";
import type { Access, Caller } from "../api/access.ts";
import { every } from "../clock.ts";
import { PublicError } from "../errors.ts";
import { whenClosed } from "./connection.ts";
import type { AppContext, AppEnv } from "./context.ts";

const AUTHORIZATION = /^(bearer|basic) +(\S.*)$/i;

/**
 * Returns the key of a request; an empty text without one. Guides of OpenAI send it by `curl -u :KEY`, as the password of
 * basic authentication. The header `api-key` goes before a password, which may be meant for a proxy. The server must never
 * ask for a password by `WWW-Authenticate`: a browser would keep it, and send it for pages of other sites.
 */
function keyIn(c: AppContext): string {
  const [, scheme, credentials = ""] =
    AUTHORIZATION.exec(c.req.header("authorization") ?? "") ?? [];
  if (scheme?.toLowerCase() === "bearer") return credentials.trim();
  return (c.req.header("api-key") || passwordIn(credentials)).trim();
}

/** Returns what stands behind the first colon. A pattern that looks for the end from each colon takes 0.2 s for 12,000 of them. */
function passwordIn(credentials: string): string {
  const text = Buffer.from(credentials, "base64").toString();
  const colonAt = text.indexOf(":");
  return colonAt === -1 ? "" : text.slice(colonAt + 1);
}

/** Masks a key. Its owner can recognise the rest, and no one can use it. */
function masked(key: string): string {
  const visibleCount = key.length >= 16 ? 4 : 0;
  return `${key.slice(0, visibleCount)}****${key.slice(key.length - visibleCount)}`;
}

export type Callers = Pick<Access, "anyone" | "callerWith" | "isGood">;

/** The time after which a long answer is looked at again, which leaves a revocation time to be in force within five seconds. */
const LOOK_EVERY_MS = 500;

/** A cache asks again before each use, so that a client that polls sees what is new. */
const FOR_ITS_CLIENT_ALONE = "private, no-cache";

/**
 * Sets the caller of a request and its project. Every request passes while no key is required.
 *
 * A cache between clients and the server keeps no answer to `Authorization` for others, but it does not know `api-key`. What
 * the web page asks for has a rule of its own.
 */
export function authenticate(callers: Callers): MiddlewareHandler<AppEnv> {
  return async (c, next) => {
    const isReading = ["GET", "HEAD"].includes(c.req.method);
    if (isReading && c.env.caller === undefined) {
      c.env.outgoing.setHeader("cache-control", FOR_ITS_CLIENT_ALONE);
    }
    const caller = c.env.caller ?? callers.anyone ?? (await callerOf(c, callers));
    c.set("caller", caller);
    c.set("isKeyGood", () => callers.isGood(caller));
    c.set("project", caller.project);
    return next();
  };
}

async function callerOf(c: AppContext, callers: Callers): Promise<Caller> {
  const key = keyIn(c);
  if (key === "") {
    throw new PublicError(
      "missing_credentials",
      "Missing bearer or basic authentication in header",
    );
  }
  const caller = await callers.callerWith(key);
  if (caller !== null) return caller;
  throw new PublicError(
    "wrong_key",
    `Incorrect API key provided: ${masked(key)}. Ask the operator of this server for a key.`,
  );
}

/** Returns a signal that aborts when the client disconnects before it has its answer, or its key is no longer good. */
export function readerOf(c: AppContext): AbortSignal {
  const { outgoing } = c.env;
  const over = new AbortController();
  const end = every(c.get("clock"), LOOK_EVERY_MS, () => {
    if (!c.get("isKeyGood")()) over.abort();
  });
  whenClosed(outgoing, () => {
    end();
    if (!outgoing.writableFinished) over.abort();
  });
  return over.signal;
}

/** Throws when the key of a request that has waited is no longer good. */
export function assertStillGood(c: AppContext): void {
  if (c.get("isKeyGood")()) return;
  throw new PublicError(
    "wrong_key",
    "The API key is not good any more. Ask the operator of this server for a key.",
  );
}
