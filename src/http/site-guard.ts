/**
 * Protects a server without keys from the pages of other sites that its user has open in a browser. Such a server trusts
 * everyone who reaches it, and a browser on the same machine reaches it for every page.
 *
 * A page can have its own name resolve to 127.0.0.1 (DNS rebinding). The browser then takes the server for a part of that
 * site, but still sends the name as `Host`. So a request must name an address, this machine, or a configured name. A page
 * can also send a form to the server without reading the answer. Browsers say in headers where such a request comes from.
 *
 * With keys nothing is checked here: a page of another site has no key, and cookies mean nothing under `/v1`. A server that
 * listens beyond this machine has names that it does not know, so its `Host` is checked only where names are configured.
 */
import { isIP } from "node:net";
import type { MiddlewareHandler } from "hono";
import { PublicError } from "../errors.ts";
import { truncate } from "../text/truncate.ts";
import type { Callers } from "./auth.ts";
import type { AppContext, AppEnv } from "./context.ts";

export interface Reach {
  /** Whether only this machine reaches the server without a proxy. */
  readonly isLoopback: boolean;
  /** The names by which clients may reach it, beside those of this machine. */
  readonly allowedHosts: readonly string[];
}

export interface SiteGuardDeps {
  readonly callers: Pick<Callers, "anyone">;
  readonly reach: Reach;
}

/** The checks of load balancers and supervisors may send any name, and learn nothing from the answers. */
const FOR_EVERYONE = ["/health", "/ready"];
const ANY_HOST = "*";

export function guardSites({ callers, reach }: SiteGuardDeps): MiddlewareHandler<AppEnv> {
  const allowed = reach.allowedHosts.map((name) => hostnameIn(name) ?? name);
  const checksHost = !allowed.includes(ANY_HOST) && (reach.isLoopback || allowed.length > 0);
  const isKnown = (host: string) => isOfThisMachine(host) || allowed.includes(host);
  return async (c, next) => {
    // A caller is set for a request of the web page, which was checked when it came in.
    const isExempt = c.env.caller !== undefined || FOR_EVERYONE.includes(c.req.path);
    if (!isExempt && callers.anyone !== null) {
      const host = c.req.header("host");
      if (checksHost && host !== undefined && !isKnown(hostnameIn(host) ?? "")) {
        throw wrongHost(host);
      }
      if (!isReading(c) && !comesFromHere(c, allowed)) throw otherSite();
    }
    await next();
  };
}

/** Returns the name in a `Host` header or an origin as a browser compares it: without the port and in lower case. */
function hostnameIn(text: string): string | null {
  const url = URL.parse(text.includes("://") ? text : `http://${text}`);
  return url === null ? null : url.hostname.replace(/\.$/, "");
}

/**
 * No page of another site has such a name: an address, a name without a dot (public DNS has none), or one that is reserved
 * for the machine itself or for private networks, such as `host.docker.internal`.
 */
const isOfThisMachine = (host: string): boolean =>
  isIP(host.replace(/^\[(.*)\]$/, "$1")) !== 0 ||
  /^[^.]+$/.test(host) ||
  /\.(?:localhost|internal)$/.test(host);

const isReading = (c: AppContext) => ["GET", "HEAD", "OPTIONS"].includes(c.req.method);

/** Programs send neither header. Browsers of today send both with a form of another site, older ones only the origin. */
function comesFromHere(c: AppContext, allowed: readonly string[]): boolean {
  const site = c.req.header("sec-fetch-site");
  const origin = c.req.header("origin");
  if (origin === undefined) return site === undefined || site === "same-origin" || site === "none";
  if (site === "same-origin") return true;
  const from = URL.parse(origin);
  if (from === null) return false;
  return from.host === c.req.header("host") || allowed.includes(hostnameIn(origin) ?? "");
}

const wrongHost = (host: string) =>
  new PublicError(
    "wrong_host",
    `This server has no keys, so it answers only to its address, to localhost and to the names in server.allowed_hosts of its configuration, and not to '${truncate(host)}'. Its operator can add the name there, or configure keys.`,
  );

const otherSite = () =>
  new PublicError(
    "cross_site_request",
    "This server has no keys, so no page of another site may change anything on it. Its operator can add the host of that site to server.allowed_hosts of the configuration, or configure keys.",
  );
