/** Lets people sign in with an API key, and sign out. A person who is signed out sees this page and nothing else. */
import type { Hono } from "hono";
import { deleteCookie, setCookie } from "hono/cookie";
import { PublicError } from "../errors.ts";
import type { AppContext, AppEnv } from "../http/context.ts";
import type { AuditEntry } from "../telemetry/audit-log.ts";
import { orFailurePage } from "./failure-page.ts";
import { cookieNameFor, isOwn, isSecure, refuseSite } from "./guard.ts";
import { html } from "./html.ts";
import { signedOutLayout } from "./layout.ts";
import { answerHtml } from "./respond.ts";
import type { Sessions } from "./sessions.ts";

export interface SignInDeps {
  readonly sessions: Sessions;
  readonly audit: { record(entry: AuditEntry): void };
}

/** The longest key and the longest page that a form may carry. */
const FORM_MAX_BYTES = 8 * 1024;
/** The time for a form to come. */
const FORM_MAX_MS = 10_000;

export function mountSignIn(app: Hono<AppEnv>, deps: SignInDeps): void {
  app.post("/web/sign-in", async (c) => {
    if (!isOwn(c)) return refuseSite(c);
    // A connection that has ended has no address any more.
    const address = c.env.incoming.socket.remoteAddress ?? null;
    const form = await readForm(c);
    const next = pageIn(form.get("next") ?? "");
    const key = (form.get("key") ?? "").trim();
    return orFailurePage(c, { root: "../", next }, () => signIn(c, { key, next, address }, deps));
  });

  // The address after a wrong key, which a person may ask for again.
  app.get("/web/sign-in", (c) => c.redirect("../", 303));

  app.post("/web/sign-out", (c) => {
    if (!isOwn(c)) return refuseSite(c);
    deleteCookie(c, cookieNameFor(c), { path: "/", secure: isSecure(c) });
    return c.redirect("../", 303);
  });
}

interface SignIn {
  readonly key: string;
  /** The page to show afterwards, below the root. */
  readonly next: string;
  readonly address: string | null;
}

async function signIn(
  c: AppContext,
  { key, next, address }: SignIn,
  { sessions, audit }: SignInDeps,
): Promise<Response> {
  const begun = await sessions.begin(key);
  audit.record({
    request_id: c.get("requestId"),
    action: "session.create",
    object: null,
    ...(begun === null ? { outcome: "denied", status: 401 } : { outcome: "done", status: 303 }),
    project: begun?.caller.project ?? null,
    key_id: begun?.caller.keyId ?? null,
    key_name: begun?.caller.keyName ?? null,
    address,
  });
  if (begun === null) return answerSignIn(c, { root: "../", next, isRefused: true });
  setCookie(c, cookieNameFor(c), begun.cookie, {
    path: "/",
    httpOnly: true,
    sameSite: "Strict",
    maxAge: begun.maxAgeSeconds,
    secure: isSecure(c),
  });
  return c.redirect(`../${next}`, 303);
}

/**
 * Reads no more than a form can have. A longer one is cut, and its key is then wrong. A slow one is cut off: its sender has
 * no key yet, and would keep a connection that others need.
 */
async function readForm(c: AppContext): Promise<URLSearchParams> {
  const { incoming } = c.env;
  const chunks: Buffer[] = [];
  let bytes = 0;
  const cancel = c.get("clock").after(FORM_MAX_MS, () => incoming.destroy());
  try {
    for await (const chunk of incoming.iterator({ destroyOnReturn: false })) {
      chunks.push(chunk as Buffer);
      bytes += (chunk as Buffer).length;
      if (bytes > FORM_MAX_BYTES) break;
    }
  } catch (cause) {
    throw new PublicError("invalid_request", "The form ended before its last byte.", { cause });
  } finally {
    cancel();
  }
  return new URLSearchParams(Buffer.concat(chunks).toString().slice(0, FORM_MAX_BYTES));
}

const PAGE =
  /^(?:batches\/[\w-]{1,64}|files|upstreams|usage|keys|new)?(?:\?[\w\-.~%=&+:/*]{0,2000})?$/;

/** Returns the path if it is one of a page, so that a link to the sign-in page can lead nowhere else. */
const pageIn = (path: string): string => (PAGE.test(path) ? path : "");

interface SignInPage {
  readonly root: string;
  /** The page to show afterwards, below the root. */
  readonly next: string;
  readonly isRefused: boolean;
}

export function answerSignIn(c: AppContext, { root, next, isRefused }: SignInPage) {
  const main = html`<form method="post" action="${root}web/sign-in">
<input type="hidden" name="next" value="${pageIn(next)}">
<label for="key">API key</label>
<input id="key" name="key" type="password" autocomplete="current-password" required autofocus spellcheck="false"${isRefused ? html` aria-invalid="true" aria-describedby="refused"` : ""}>
${isRefused ? html`<p class="fault" id="refused" role="alert">This server does not know the key, or it has expired.</p>` : ""}
<button class="primary">Sign in</button>
<p class="dim">The key stays on the server. This browser gets a session that ends with the key, or after seven days.</p>
</form>`;
  const frame = { title: "Sign in", root, scripts: ["signed-out.js"] };
  return answerHtml(c, signedOutLayout(frame, main), 401);
}
