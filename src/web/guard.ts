/** Finds out who sends a request of the page, and whether another site has caused it. */
import { getCookie } from "hono/cookie";
import type { Caller } from "../api/access.ts";
import type { AppContext } from "../http/context.ts";
import { truncate } from "../text/truncate.ts";
import type { Sessions } from "./sessions.ts";

const COOKIE_NAME = "batchd_session";
/** The prefix keeps pages of sibling domains from setting the cookie. Browsers take it with TLS only. */
const SECURE_COOKIE_NAME = `__Host-${COOKIE_NAME}`;
const TOKEN_HEADER = "x-batchd-token";

/** A person at a page. */
export interface Visit {
  readonly caller: Caller;
  /** Whether there is a session to end. */
  readonly isSignedIn: boolean;
  /** The token that requests carry to change something. */
  readonly token: string;
}

/** What a person may see. A page that was opened with other rights takes no events, and is then read anew. */
export const rightsOf = ({ keyName, project, scopes }: Caller): string =>
  JSON.stringify([keyName === null, project, scopes]);

export const cookieNameFor = (c: AppContext): string =>
  isSecure(c) ? SECURE_COOKIE_NAME : COOKIE_NAME;

const cookieOf = (c: AppContext): string | undefined => getCookie(c, cookieNameFor(c));

/** Returns null when the person must sign in. */
export async function visitOf(c: AppContext, sessions: Sessions): Promise<Visit | null> {
  const cookie = cookieOf(c);
  const caller = sessions.anyone ?? (await sessions.callerOf(cookie));
  if (caller === null) return null;
  return { caller, isSignedIn: sessions.anyone === null, token: await sessions.tokenOf(cookie) };
}

/**
 * Whether the request comes from a page of this server. All browsers of today send `Sec-Fetch-Site`; for others the origin
 * must be the host that they asked.
 */
export function isOwn(c: AppContext): boolean {
  const site = c.req.header("sec-fetch-site");
  if (site !== undefined) return site === "same-origin" || (site === "none" && isReading(c));
  const origin = c.req.header("origin");
  if (origin === undefined) return isReading(c);
  const host = URL.parse(origin)?.host;
  return host !== undefined && host === c.req.header("host");
}

/**
 * Refuses a request that comes from no page of this server. Behind a proxy that passes on another `Host`, the pages of this server
 * look like those of another site.
 */
export function refuseSite(c: AppContext): Response {
  const { origin = "", host = "no host", "sec-fetch-site": site } = c.req.header();
  const hint =
    site === undefined && URL.canParse(origin)
      ? ` It came from ${truncate(origin)} and asked for ${truncate(host)}: if that is this server, a proxy in between changes the Host. Let it pass on the one that the browser sends, with its port.`
      : "";
  return c.text(`This is for the pages of this server.${hint}`, 403);
}

const isReading = (c: AppContext) => c.req.method === "GET" || c.req.method === "HEAD";

/** Whether a request may be carried out. One that changes something needs the token of its session, too. */
export async function isAllowed(c: AppContext, sessions: Sessions): Promise<boolean> {
  if (!isOwn(c)) return false;
  return isReading(c) || sessions.isTokenOf(cookieOf(c), c.req.header(TOKEN_HEADER) ?? "");
}

/** The reader's browser talks TLS to the server or to the proxy in front of it. A false claim only hurts its sender. */
export const isSecure = (c: AppContext): boolean =>
  new URL(c.req.url).protocol === "https:" ||
  c.req.header("x-forwarded-proto")?.split(",")[0]?.trim() === "https";
