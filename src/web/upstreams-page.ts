/**
 * The upstreams of all servers together: condition, limit, requests in flight, latency, refusals, rates and hours. They say
 * what an operator has configured, so with keys only administrators see them.
 */
import type { UpstreamList, UpstreamObject } from "../contract/upstream.ts";
import { liveChart } from "./chart.ts";
import { formatCompact, formatCount, time } from "./format.ts";
import { figure, type Html, html, untrusted } from "./html.ts";
import { pageLinks } from "./list-pages.ts";
import { type Asked, type ListOf, type Page, type Part, readFor } from "./page.ts";
import { pill, WAITING_TEXTS } from "./status.ts";

const ROWS = 50;

export const upstreamsPage: Page = {
  path: "/upstreams",
  pollMs: 2_000,
  scripts: ["uplot.js", "charts.js"],
  styles: ["uplot.css"],
  async view(asked) {
    const answer = await readFor<UpstreamList>(asked, "/v1/admin/upstreams");
    if (!answer.ok) return answer.status === 403 ? NOT_ALLOWED : answer;
    const all = answer.value.data;
    const after = asked.query.get("after") ?? "";
    // The API sorts them by name.
    const following = all.filter(({ name }) => name > after);
    const upstreams = following.slice(0, ROWS);
    const rows = upstreams.map((each): Part => ({ id: `target-${each.name}`, html: row(each) }));
    const facts = upstreams.map(
      (each): Part => ({ id: `facts-${each.name}`, html: factsOf(each) }),
    );
    const parts = [
      { id: "heading", html: heading(all) },
      { id: "targets", html: rows.length === 0 ? empty(all) : table(rows), pieces: rows },
      {
        id: "pages",
        html: pages(asked, {
          last_id: upstreams.at(-1)?.name ?? null,
          has_more: following.length > ROWS,
        }),
      },
      { id: "charts", html: cards(upstreams, facts), pieces: facts },
    ];
    return { ok: true, value: { title: "Upstreams", parts, isOver: false } };
  },
};

/** Without keys everyone is the operator. */
export const maySeeUpstreams = ({ caller }: Pick<Asked, "caller">): boolean =>
  caller.keyName === null || caller.scopes.includes("admin");

const NOT_ALLOWED = {
  ok: false,
  status: 403,
  message: "Upstreams are for administrators: their keys have the scope admin.",
} as const;

/** Names those that take no lines, where they may be on another page of the list. */
function heading(all: readonly UpstreamObject[]): Html {
  const unavailable = all.filter((each) => each.unavailable !== null).map(({ name }) => name);
  const note =
    all.length <= ROWS
      ? ""
      : html`<p class="dim">${formatCount(all.length)} upstreams${unavailable.length === 0 ? "" : html`; they do not take all lines: ${listed(unavailable)}`}</p>`;
  return html`<div id="heading" class="head"><div><h1>Upstreams</h1>${note}</div></div>`;
}

const pages = (asked: Asked, shown: Pick<ListOf<unknown>, "last_id" | "has_more">): Html =>
  html`<div id="pages">${pageLinks(asked, { path: "upstreams", shown, labels: ["First", "Next"] })}</div>`;

/** The upstreams of a later page may have been taken from the configuration. */
const empty = (all: readonly UpstreamObject[]): Html =>
  all.length > 0
    ? html`<div id="targets" class="empty"><h2>No more upstreams</h2></div>`
    : html`<div id="targets" class="empty"><h2>No upstreams</h2><p>Start the server with --upstream, or name upstreams in its configuration.</p></div>`;

const table = (rows: readonly Part[]): Html =>
  html`<div id="targets" class="scroll" tabindex="0" role="region" aria-label="Upstreams"><table>
<thead><tr><th scope="col">Upstream</th><th scope="col">State</th><th scope="col" class="number">In flight</th><th scope="col" class="number">Limit</th><th scope="col" class="number middle">Waiting</th><th scope="col" class="number wide">Half within</th><th scope="col" class="number wide">95% within</th><th scope="col" class="number middle">Answered</th><th scope="col" class="number middle">429s</th><th scope="col" class="number middle">Failed</th></tr></thead>
<tbody>${rows.map((part) => part.html)}</tbody>
</table></div>`;

function row(upstream: UpstreamObject): Html {
  const { in_flight: inFlight, concurrency_limit: limit, attempts, latency_seconds } = upstream;
  const { batch, interactive } = inFlight;
  const failed = attempts.failed + attempts.overloaded;
  return html`<tr id="target-${upstream.name}" data-values="${JSON.stringify([batch + interactive, limit])}">
<th scope="row">${untrusted(upstream.name, 60)}</th>
<td>${state(upstream)}</td>
<td class="number">${formatCount(batch + interactive)}</td>
<td class="number">${formatCount(limit)}</td>
<td class="number middle">${formatCount(upstream.waiting)}</td>
<td class="number wide">${latency_seconds === null ? "–" : seconds(latency_seconds.p50)}</td>
<td class="number wide">${latency_seconds === null ? "–" : seconds(latency_seconds.p95)}</td>
<td class="number middle">${formatCount(attempts.answered)}</td>
<td class="number middle">${formatCount(attempts.rate_limited)}</td>
<td class="number middle${failed > 0 ? " fault" : ""}">${formatCount(failed)}</td>
</tr>`;
}

/**
 * The reason says more than the circuit breaker, which is open for several of them. An open circuit takes nothing, and an open
 * shop does, so a person gets neither word.
 */
function state({ circuit, unavailable, held }: UpstreamObject): Html {
  if (unavailable?.reason === "outside_hours") return pill("idle", "outside hours");
  if (circuit === "half_open") return pill("wait", "probing");
  if (unavailable !== null) {
    return unavailable.reason === "no_room" ? pill("wait", "full") : pill("bad", "not asked");
  }
  if (circuit === "open") return pill("wait", held.length > 0 ? "holds some" : "recovering");
  return pill("good", "available");
}

function seconds(bound: number | null): string {
  if (bound === null) return "longer";
  return bound < 1 ? `${Math.round(bound * 1000)} ms` : `${bound} s`;
}

/** Each has the name of its upstream in its id, so that a chart stays with it when a reload brings others. */
const cards = (upstreams: readonly UpstreamObject[], facts: readonly Part[]): Html =>
  html`<div id="charts" class="grid">${upstreams.map(({ name }, at) => html`<section id="card-${name}" class="card" aria-labelledby="chart-${name}"><h2 id="chart-${name}">${untrusted(name, 60)} <span class="dim">in flight and limit, since this page was opened</span></h2><div data-follows="target-${name}">${liveChart("Requests in flight and their limit since this page was opened; the table above has the present figures.", ["In flight", "Limit"])}</div>${facts[at]?.html}</section>`)}</div>`;

function factsOf(upstream: UpstreamObject): Html {
  const { unavailable, held, models, servers, schedule } = upstream;
  const facts: (readonly [name: string, value: Html | string])[] = [
    ["Models", html`${listed(models)}`],
    ["Configured limit", `${formatCount(upstream.max_concurrency)} at once`],
    ["Requests a minute", rate(upstream.requests_per_minute)],
    ["Tokens a minute", rate(upstream.tokens_per_minute)],
    ["Hours", schedule === null ? "at any time" : hours(schedule)],
    ["Servers", formatCount(servers)],
  ];
  return html`<div id="facts-${upstream.name}">${unavailable === null ? "" : refusal(unavailable)}${held.slice(0, MAX_HELD).map((each) => html`<p class="notice">${untrusted(each.model, 60)} of the project ${untrusted(each.project, 60)}: ${words(each)}</p>`)}
<dl class="facts">${facts.map(([name, value]) => figure(name, value))}</dl></div>`;
}

const MAX_HELD = 5;
const MAX_MODELS = 10;

const listed = (models: readonly string[]): Html =>
  html`${models.slice(0, MAX_MODELS).map((model, at) => html`${at === 0 ? "" : ", "}${model === "*" ? "any" : untrusted(model, 60)}`)}${models.length > MAX_MODELS ? ` and ${formatCount(models.length - MAX_MODELS)} more` : ""}`;

const rate = (used: UpstreamObject["requests_per_minute"]): string =>
  used === null
    ? "no limit known"
    : `${formatCompact(used.used)} of ${formatCompact(used.limit)} in the last minute`;

type Refused = Pick<UpstreamObject["held"][number], "reason" | "message">;

const refusal = (refused: Refused): Html => html`<p class="notice">${words(refused)}</p>`;

const words = ({ reason, message }: Refused): Html =>
  html`${REASONS[reason] ?? WAITING_TEXTS[reason]}${message === null ? "" : html` <code>${untrusted(message)}</code>`}`;

/** The reasons in the words of one upstream; a batch has others. */
const REASONS: Partial<Readonly<Record<Refused["reason"], string>>> = {
  no_room: "It is overloaded, or all of its slots are taken.",
  upstream_down: "It does not answer. Lines go out again by themselves when it does.",
  refused_credentials: "It refuses the key that is configured for it.",
  out_of_quota: "The account there has no quota or credit left.",
  wrong_address:
    "It does not know the address that is configured for it, or lacks an endpoint that batches ask for.",
  outside_hours: "It takes lines of batches at other hours. Interactive requests go out.",
};

type Schedule = NonNullable<UpstreamObject["schedule"]>;

function hours({ windows, time_zone, open, concurrency, next }: Schedule): Html {
  const change =
    next === null
      ? ""
      : html`, ${open ? "until" : "opens"} ${time(next.at, "relative")}${open && next.concurrency > 0 ? ` (then ${formatCount(next.concurrency)})` : ""}`;
  return html`${open ? `open for ${formatCount(concurrency)} lines at once` : "closed"}${change}<span class="dim under">${windows.map(windowText).join("; ")}, ${time_zone}</span>`;
}

const windowText = ({ days, from, to }: Schedule["windows"][number]): string =>
  `${days === null ? "every day" : days.join(", ")} ${from}–${to}`;
