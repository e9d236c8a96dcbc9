/**
 * The upstreams as this server sees them: circuit, limit, requests in flight, latency and refusals. The figures are those of
 * `/metrics`. They say what an operator has configured, so with keys only administrators see them.
 */
import { liveChart } from "./chart.ts";
import { formatCount } from "./format.ts";
import { type Html, html, untrusted } from "./html.ts";
import { type Sample, samplesOf } from "./metrics-text.ts";
import type { Asked, Page, Part } from "./page.ts";
import { pill } from "./status.ts";

export const upstreamsPage: Page = {
  path: "/upstreams",
  pollMs: 2_000,
  scripts: ["uplot.js", "charts.js"],
  styles: ["uplot.css"],
  async view(asked) {
    if (!maySeeUpstreams(asked)) return NOT_ALLOWED;
    const text = await asked.api.metrics();
    const targets = targetsIn(samplesOf(text, "batchd_upstream_"));
    const rows = targets.map((target): Part => ({ id: `target-${target.at}`, html: row(target) }));
    const parts = [
      { id: "heading", html: html`<div id="heading" class="head"><h1>Upstreams</h1></div>` },
      { id: "targets", html: table(rows), pieces: rows },
      { id: "charts", html: charts(targets) },
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

interface Target {
  /** Its place in the list, which names its elements. */
  readonly at: number;
  readonly name: string;
  readonly circuit: string;
  readonly inFlight: number;
  readonly waiting: number;
  readonly limit: number;
  readonly attemptCount: number;
  readonly overloadedCount: number;
  readonly failedCount: number;
  readonly p50Seconds: number | null;
  readonly p95Seconds: number | null;
}

function targetsIn(samples: readonly Sample[]): Target[] {
  const names = new Set(
    samples.flatMap(({ labels }) => (labels["target"] === undefined ? [] : [labels["target"]])),
  );
  return [...names].sort().map((name, at) => {
    const own = samples.filter(({ labels }) => labels["target"] === name);
    const sum = (metric: string, matches = (_: Sample["labels"]) => true) =>
      own.reduce(
        (all, each) => all + (each.name === metric && matches(each.labels) ? each.value : 0),
        0,
      );
    const attempts = "batchd_upstream_attempts_total";
    const circuit = own.find(
      (each) => each.name === "batchd_upstream_circuit_state" && each.value === 1,
    );
    return {
      ...{ at, name },
      circuit: circuit?.labels["state"] ?? "closed",
      inFlight: sum("batchd_upstream_in_flight"),
      waiting: sum("batchd_upstream_waiting"),
      limit: sum("batchd_upstream_concurrency_limit"),
      attemptCount: sum(attempts),
      overloadedCount: sum(attempts, ({ outcome }) => outcome === "overloaded"),
      failedCount: sum(
        attempts,
        ({ outcome }) =>
          outcome !== "answered" && outcome !== "overloaded" && outcome !== "interrupted",
      ),
      p50Seconds: quantile(own, 0.5),
      p95Seconds: quantile(own, 0.95),
    };
  });
}

const BUCKET = "batchd_upstream_attempt_duration_seconds_bucket";

/** Returns the upper bound of the bucket in which the quantile is; null without any attempt. */
function quantile(samples: readonly Sample[], share: number): number | null {
  const buckets = samples
    .filter(({ name }) => name === BUCKET)
    .map(({ labels, value }) => ({
      le: Number((labels["le"] ?? "").replace("+Inf", "Infinity")),
      value,
    }))
    .sort((a, b) => a.le - b.le);
  const count = buckets.at(-1)?.value ?? 0;
  if (count === 0) return null;
  return buckets.find(({ value }) => value >= count * share)?.le ?? null;
}

const table = (rows: readonly Part[]): Html =>
  rows.length === 0
    ? html`<div id="targets" class="empty"><h2>No upstreams</h2><p>Start the server with --upstream, or name upstreams in its configuration.</p></div>`
    : html`<div id="targets" class="scroll" tabindex="0" role="region" aria-label="Upstreams"><table>
<thead><tr><th scope="col">Upstream</th><th scope="col">Circuit</th><th scope="col" class="number">In flight</th><th scope="col" class="number">Limit</th><th scope="col" class="number middle">Waiting</th><th scope="col" class="number wide">Half within</th><th scope="col" class="number wide">95% within</th><th scope="col" class="number middle">Attempts</th><th scope="col" class="number middle">Overloaded</th><th scope="col" class="number middle">Failed</th></tr></thead>
<tbody>${rows.map((part) => part.html)}</tbody>
</table></div>`;

const CIRCUITS: Readonly<Record<string, readonly [tone: string, label: string]>> = {
  closed: ["good", "closed"],
  half_open: ["wait", "probing"],
  open: ["bad", "open: not asked"],
};

function row(target: Target): Html {
  const [tone, label] = CIRCUITS[target.circuit] ?? ["idle", target.circuit];
  return html`<tr id="target-${target.at}" data-values="${JSON.stringify([target.inFlight, target.limit])}">
<th scope="row">${untrusted(target.name, 60)}</th>
<td>${pill(tone, label)}</td>
<td class="number">${formatCount(target.inFlight)}</td>
<td class="number">${formatCount(target.limit)}</td>
<td class="number middle">${formatCount(target.waiting)}</td>
<td class="number wide">${seconds(target.p50Seconds)}</td>
<td class="number wide">${seconds(target.p95Seconds)}</td>
<td class="number middle">${formatCount(target.attemptCount)}</td>
<td class="number middle">${formatCount(target.overloadedCount)}</td>
<td class="number middle${target.failedCount > 0 ? " fault" : ""}">${formatCount(target.failedCount)}</td>
</tr>`;
}

function seconds(bound: number | null): string {
  if (bound === null) return "–";
  if (bound === Number.POSITIVE_INFINITY) return "longer";
  return bound < 1 ? `${Math.round(bound * 1000)} ms` : `${bound} s`;
}

const charts = (targets: readonly Target[]): Html =>
  html`<div id="charts" class="grid">${targets.map(({ at, name }) => html`<section class="card" aria-labelledby="chart-${at}"><h2 id="chart-${at}">${untrusted(name, 60)} <span class="dim">in flight and limit, since this page was opened</span></h2><div data-follows="target-${at}">${liveChart("Requests in flight and their limit since this page was opened; the table above has the present figures.", ["In flight", "Limit"])}</div></section>`)}</div>`;
