/**
 * The web page: `/` and the pages below it for people, and `/web/…` for what they load. Nothing under `/v1` changes. A request
 * that does not ask for HTML is not for this file, so a client whose base URL lacks `/v1` still gets the hint.
 */
import type { Hono } from "hono";
import type { Clock } from "../clock.ts";
import type { AppContext, AppEnv } from "../http/context.ts";
import { pathOf } from "../http/path.ts";
import type { Log } from "../telemetry/log.ts";
import { Api } from "./api.ts";
import { mountAssets } from "./assets.ts";
import { batchPage } from "./batch-page.ts";
import { batchesPage } from "./batches-page.ts";
import { orFailurePage } from "./failure-page.ts";
import { filesPage } from "./files-page.ts";
import { isAllowed, isOwn, refuseSite, rightsOf, type Visit, visitOf } from "./guard.ts";
import { html } from "./html.ts";
import { keysPage } from "./keys-page.ts";
import { homeOf, layout } from "./layout.ts";
import { answerReload, Live } from "./live.ts";
import { newBatchPage } from "./new-batch-page.ts";
import { type Asked, type Page, refusalView } from "./page.ts";
import { answerHtml, protectData } from "./respond.ts";
import { Sessions, type SessionsDeps } from "./sessions.ts";
import { answerSignIn, mountSignIn, type SignInDeps } from "./sign-in.ts";
import { upstreamsPage } from "./upstreams-page.ts";
import { usagePage } from "./usage-page.ts";

const PAGES: readonly Page[] = [
  batchesPage,
  batchPage,
  newBatchPage,
  filesPage,
  upstreamsPage,
  usagePage,
  keysPage,
];

/** Every other address that a person opens. The API answers programs, and all that is below its own path. */
const noPage: Page = {
  path: "*",
  pollMs: null,
  view: async () => ({
    ok: false,
    status: 404,
    message: "This server has no page at this address.",
  }),
};

export interface WebDeps extends SessionsDeps, Pick<SignInDeps, "audit"> {
  readonly clock: Clock;
  readonly log: Log;
}

export interface Web {
  /** Ends the events of all open pages. */
  close(): void;
}

/** Mounts the page on the app of the API. Call this last: the page answers only what no route of the API takes. */
export function mountWeb(app: Hono<AppEnv>, deps: WebDeps): Web {
  const api = new Api(app);
  const sessions = new Sessions(deps);
  const live = new Live(deps);
  mountAssets(app);
  mountSignIn(app, { sessions, audit: deps.audit });
  mountPassage(app, api, sessions);
  for (const page of PAGES) {
    mountPage(app, page, { api, sessions });
    if (page.pollMs !== null) mountEvents(app, page, { api, sessions, live });
  }
  // People shorten the address of a batch. A program gets the hint that the API is under `/v1`.
  app.get("/batches", async (c, next) =>
    asksForHtml(c) ? c.redirect(rootOf(pathOf(c.req.url)), 303) : next(),
  );
  mountPage(app, noPage, { api, sessions });
  return live;
}

interface PageDeps {
  readonly api: Api;
  readonly sessions: Sessions;
}

function mountPage(app: Hono<AppEnv>, page: Page, deps: PageDeps): void {
  app.get(page.path, async (c, next) => {
    if (!asksForHtml(c)) return next();
    const path = c.req.path.slice(1);
    const query = new URL(c.req.url).search;
    const written = pathOf(c.req.url);
    const root = rootOf(written);
    // Links in what the events of a page bring, and those between pages of a list, lead on from the path without a final slash.
    if (written !== c.req.path) return c.redirect(root + path + query, 303);
    const address = { path, query, root };
    return orFailurePage(c, { root, next: path + query }, () =>
      answerPage(c, page, { ...deps, ...address }),
    );
  });
}

interface Address {
  readonly path: string;
  readonly query: string;
  readonly root: string;
}

async function answerPage(
  c: AppContext,
  page: Page,
  { path, query, root, api, sessions }: Address & PageDeps,
): Promise<Response> {
  const visit = await visitOf(c, sessions);
  if (visit === null) return answerSignIn(c, { root, next: path + query, isRefused: false });
  if (path === "" && homeOf(visit) !== "") return c.redirect(root + homeOf(visit), 303);
  const asked = askedBy(c, visit, { api, root, isPoll: false });
  const answer = await page.view(asked);
  const isList = page !== noPage && asked.id === "";
  const back = wayBack(root, path, isList && query !== "");
  const view = answer.ok ? answer.value : refusalView(answer, back);
  const isLive = answer.ok && page.pollMs !== null && !view.isOver;
  const livePath = isLive ? `web/live/${path}${query}` : null;
  const main = html`${view.parts.map((part) => part.html)}`;
  const frame = {
    title: view.title,
    path,
    root,
    visit,
    nowMs: asked.nowMs,
    livePath,
    // The scripts of a page need its elements, which an error does not have.
    scripts: (answer.ok && page.scripts) || [],
    styles: page.styles ?? [],
  };
  return answerHtml(c, layout(frame, main), answer.ok ? 200 : statusFor(answer.status));
}

/** Leads to the page as it is without what the address asks for, or to the first one. */
const wayBack = (root: string, path: string, hasChoices: boolean) =>
  hasChoices
    ? { href: root + path, label: "Show all" }
    : { href: root, label: "To the first page" };

/** Statuses that an error of the API has and a page may have. */
const statusFor = (status: number) =>
  ([400, 403, 404, 429, 503] as const).find((each) => each === status) ?? 500;

/** Mounts the events of a page under the path of the page, below `/web/live`. */
function mountEvents(
  app: Hono<AppEnv>,
  page: Page,
  { api, sessions, live }: PageDeps & { readonly live: Live },
): void {
  app.get(`/web/live${page.path === "/" ? "" : page.path}`, async (c) => {
    const visit = await visitOf(c, sessions);
    if (visit === null) return answerReload(c);
    if (!(await isAllowed(c, sessions))) return refuse(c);
    const path = c.req.path.slice("/web/live".length) || "/";
    const asked = askedBy(c, visit, { api, root: rootOf(path), isPoll: true });
    const rights = rightsOf(visit.caller);
    return live.answer(c, {
      project: visit.caller.project,
      key: JSON.stringify([rights, path, asked.query.toString()]),
      path,
      rights,
      pollMs: page.pollMs ?? 1_000,
      view: () => page.view({ ...asked, nowMs: c.get("clock").nowMs() }),
      isAllowed: async () => {
        const present = await visitOf(c, sessions);
        return present !== null && rightsOf(present.caller) === rights;
      },
    });
  });
}

function askedBy(
  c: AppContext,
  { caller }: Visit,
  rest: Pick<Asked, "api" | "root" | "isPoll">,
): Asked {
  return {
    ...rest,
    caller,
    nowMs: c.get("clock").nowMs(),
    id: c.req.param("id") ?? "",
    query: new URL(c.req.url).searchParams,
  };
}

/** Passes requests of the page's scripts and links on to the API, with the caller that the session names. */
function mountPassage(app: Hono<AppEnv>, api: Api, sessions: Sessions): void {
  app.on(["GET", "POST", "DELETE"], "/web/v1/*", async (c) => {
    const visit = await visitOf(c, sessions);
    if (visit === null) return c.text("Sign in first.", 401);
    if (!(await isAllowed(c, sessions))) return refuse(c);
    protectData(c);
    const { pathname, search } = new URL(c.req.url);
    return api.pass(c, pathname.slice(pathname.indexOf("/v1/")) + search, visit.caller);
  });
}

/** A page of this server gets the first text after its person has signed in anew in another tab. */
const refuse = (c: AppContext): Response =>
  isOwn(c)
    ? c.text("This is for the pages of this server. If it is one of them, load it again.", 403)
    : refuseSite(c);

const asksForHtml = (c: AppContext) =>
  c.req.header("accept")?.includes("text/html") === true && !/^\/v1(?:\/|$)/.test(c.req.path);

/** Returns the way from a path to the root, so that links work behind a proxy that adds a prefix. */
const rootOf = (path: string): string => "../".repeat(path.split("/").length - 2) || "./";
