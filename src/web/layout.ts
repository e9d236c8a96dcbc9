/** The frame of every page: its head, the bar at the top, and the dialog that asks before something is destroyed. */
import type { Scope } from "../contract/scope.ts";
import { version } from "../version.ts";
import { assetPath, assetsVersion, isLibrary, STYLES } from "./assets.ts";
import { rightsOf, type Visit } from "./guard.ts";
import { type Html, html, untrusted } from "./html.ts";
import { maySeeUpstreams } from "./upstreams-page.ts";

interface Entry {
  readonly path: string;
  readonly label: string;
  readonly isFor: (visit: Visit) => boolean;
}

const may =
  (...scopes: readonly Scope[]) =>
  ({ caller }: Visit): boolean =>
    scopes.some((scope) => caller.scopes.includes(scope));

/** The entries of the bar, each for the people who may see its page. */
const ENTRIES: readonly Entry[] = [
  { path: "", label: "Batches", isFor: may("read") },
  { path: "files", label: "Files", isFor: may("read") },
  { path: "upstreams", label: "Upstreams", isFor: maySeeUpstreams },
  { path: "usage", label: "Usage", isFor: may("read", "admin") },
  { path: "keys", label: "Keys", isFor: may("admin") },
];

/** The path of the first page that a person may see; an administrator may not see batches. */
export const homeOf = (visit: Visit): string =>
  ENTRIES.find(({ isFor }) => isFor(visit))?.path ?? "";

export interface Frame {
  readonly title: string;
  /** The path of the page below the root, which marks its entry. */
  readonly path: string;
  /** The way to the root of the server, so that a proxy may add a prefix to every path. */
  readonly root: string;
  readonly visit: Visit;
  readonly nowMs: number;
  /** The path of the events that keep the page up to date; null for a page that stands still. */
  readonly livePath: string | null;
  /** Scripts besides those of every page. */
  readonly scripts: readonly string[];
  readonly styles: readonly string[];
}

export const layout = (frame: Frame, main: Html): Html => {
  const { title, root, visit, nowMs, livePath, scripts, styles } = frame;
  return html`<!doctype html>
<html lang="en" data-root="${root}" data-token="${visit.token}" data-rights="${rightsOf(visit.caller)}" data-now="${nowMs}" data-version="${assetsVersion()}"${livePath === null ? "" : html` data-live="${root}${livePath}"`}>
<head>
${head(title, root, [...styles, ...STYLES])}
<script src="${root}${assetPath("idiomorph.js")}" defer></script>
${scripts.filter((name) => isLibrary(name)).map((name) => html`<script src="${root}${assetPath(name)}" defer></script>`)}
<script src="${root}${assetPath("app.js")}" type="module"></script>
${scripts.filter((name) => !isLibrary(name)).map((name) => html`<script src="${root}${assetPath(name)}" type="module"></script>`)}
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header class="bar">
<a class="brand" href="${root}">${mark()}batchd</a>
<nav aria-label="Pages">${ENTRIES.filter(({ isFor }) => isFor(visit)).map((entry) => navigation(frame, entry))}</nav>
<span class="grow"></span>
<span class="live" id="live" role="status"></span>
${identity(frame)}
</header>
<main id="main" tabindex="-1">
<noscript><p class="notice">Without JavaScript this page does not update, and its actions do not work.</p></noscript>
${main}
</main>
<div id="notes" class="notes" role="status" aria-live="polite"></div>
${askDialog()}
</body>
</html>`;
};

/** The frame for a person without a session, who sees no other page. */
export const signedOutLayout = (
  { title, root, scripts = [] }: Pick<Frame, "title" | "root"> & Partial<Pick<Frame, "scripts">>,
  main: Html,
): Html => html`<!doctype html>
<html lang="en">
<head>
${head(title, root, STYLES)}
${scripts.map((name) => html`<script src="${root}${assetPath(name)}" type="module"></script>`)}
</head>
<body class="signed-out">
<main id="main" class="sign-in">
<h1>${mark()}batchd</h1>
${main}
</main>
</body>
</html>`;

const head = (
  title: string,
  root: string,
  styles: readonly string[],
): Html => html`<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>${title} · batchd</title>
<link rel="icon" href="${root}${assetPath("icon.svg")}" type="image/svg+xml">
${styles.map((name) => html`<link rel="stylesheet" href="${root}${assetPath(name)}">`)}`;

const mark = (): Html =>
  html`<svg class="mark" viewBox="0 0 16 16" aria-hidden="true"><rect x="1" y="2" width="14" height="3" rx="1.5"/><rect x="1" y="6.5" width="10" height="3" rx="1.5"/><rect x="1" y="11" width="6" height="3" rx="1.5"/></svg>`;

function navigation({ path, root }: Frame, { path: target, label }: Entry): Html {
  const isBelow = target === "" && (path.startsWith("batches/") || path === "new");
  const isCurrent = path === target || isBelow;
  return html`<a href="${root}${target}"${isCurrent ? html` aria-current="page"` : ""}>${label}</a>`;
}

function identity({ root, visit }: Frame): Html {
  const { project, keyName } = visit.caller;
  if (!visit.isSignedIn) return html`<span class="who">batchd ${version}</span>`;
  return html`<span class="who" title="Project and key"><b>${untrusted(project, 60)}</b> <span class="dim">${untrusted(keyName ?? "", 40)}</span></span>
<form method="post" action="${root}web/sign-out" class="inline"><button class="quiet">Sign out</button></form>`;
}

const askDialog = (): Html => html`<dialog id="ask" aria-labelledby="ask-title">
<form method="dialog" autocomplete="off">
<h2 id="ask-title"></h2>
<p id="ask-detail"></p>
<label id="ask-choice" class="check" hidden><input type="checkbox"><span></span></label>
<div class="buttons"><button value="no" class="plain" autofocus>Keep</button><button value="yes" class="danger" id="ask-yes"></button></div>
</form>
</dialog>`;
