/** Shows what answers took and cost: by day, project and model. */
import { USAGE_GROUPS, type UsageGroup, type UsageList, type UsageRow } from "../contract/usage.ts";
import type { Refusal } from "./api.ts";
import { chart } from "./chart.ts";
import { formatCompact, formatCount, formatLines, formatMoney } from "./format.ts";
import { figure, type Html, html, untrusted } from "./html.ts";
import { type Asked, type Page, readFor } from "./page.ts";

const RANGES = [7, 30, 90, 365] as const;
const DEFAULT_DAYS = 30;
const DAY_MS = 86_400_000;
const MAX_ROWS = 500;
/** The status of the API where a report would have too many sums: the form asks for nothing else that it refuses. */
const TOO_MANY_SUMS = 400;

export const usagePage: Page = {
  path: "/usage",
  pollMs: null,
  scripts: ["uplot.js", "charts.js"],
  styles: ["uplot.css"],
  async view(asked) {
    const { days, groups, params } = choiceOf(asked);
    const [byDay, grouped] = await Promise.all([
      readFor<UsageList>(asked, `/v1/usage?${paramsOf(asked, days, ["day"])}`),
      readFor<UsageList>(asked, `/v1/usage?${params}`),
    ]);
    if (!byDay.ok) return byDay;
    if (!grouped.ok && grouped.status !== TOO_MANY_SUMS) return grouped;
    const parts = [
      { id: "heading", html: heading(asked, { days, groups, params }) },
      { id: "sums", html: sums(byDay.value.data) },
      { id: "chart", html: dayChart(byDay.value.data, asked.nowMs, days) },
      { id: "rows", html: grouped.ok ? table(grouped.value.data, groups) : noTable(grouped) },
    ];
    return { ok: true, value: { title: "Usage", parts, isOver: true } };
  },
};

interface Choice {
  readonly days: number;
  readonly groups: readonly UsageGroup[];
  readonly params: URLSearchParams;
}

function choiceOf(asked: Asked): Choice {
  const days = RANGES.find((each) => String(each) === asked.query.get("days")) ?? DEFAULT_DAYS;
  const chosen = USAGE_GROUPS.filter((group) => asked.query.getAll("by").includes(group));
  const groups: readonly UsageGroup[] = chosen.length === 0 ? ["model", "day"] : chosen;
  return { days, groups, params: paramsOf(asked, days, groups) };
}

function paramsOf({ nowMs }: Asked, days: number, groups: readonly UsageGroup[]): URLSearchParams {
  const from = new Date(nowMs - (days - 1) * DAY_MS).toISOString().slice(0, 10);
  return new URLSearchParams({ group_by: groups.join(","), from });
}

const heading = (
  { root }: Asked,
  { days, groups, params }: Choice,
): Html => html`<div id="heading"><div class="head"><h1>Usage</h1><div class="actions"><a class="button" href="${root}web/v1/usage?${params.toString()}&amp;format=csv" download="usage.csv"><span aria-hidden="true">↓</span> CSV</a></div></div>
<form method="get" autocomplete="off" class="filters" aria-label="What to sum up">
<label>Days <select name="days">${RANGES.map((each) => html`<option value="${each}"${each === days ? html` selected` : ""}>last ${each} days</option>`)}</select></label>
<fieldset><legend>By</legend>${USAGE_GROUPS.map((group) => html`<label class="check"><input type="checkbox" name="by" value="${group}"${groups.includes(group) ? html` checked` : ""}> ${group}</label>`)}</fieldset>
<span class="buttons"><button>Show</button></span>
</form></div>`;

function sums(rows: readonly UsageRow[]): Html {
  const sum = (read: (row: UsageRow) => number) => rows.reduce((all, row) => all + read(row), 0);
  return html`<section id="sums" class="card" aria-label="Sums"><dl class="figures large">
${figure("Lines", formatCount(sum((row) => row.requests)))}
${figure("Input tokens", formatCompact(sum((row) => row.input_tokens)))}
${figure("Output tokens", formatCompact(sum((row) => row.output_tokens)))}
${[...costsOf(rows)].map(([currency, amount]) => figure("Cost", formatMoney(String(amount), currency)))}
</dl></section>`;
}

function costsOf(rows: readonly UsageRow[]): Map<string, number> {
  const costs = new Map<string, number>();
  for (const { cost } of rows) {
    if (cost !== null)
      costs.set(cost.currency, (costs.get(cost.currency) ?? 0) + Number(cost.amount));
  }
  return costs;
}

function dayChart(rows: readonly UsageRow[], nowMs: number, days: number): Html {
  const today = Math.floor(nowMs / DAY_MS) * DAY_MS;
  const starts = Array.from({ length: days }, (_, at) => today - (days - 1 - at) * DAY_MS);
  const of = (read: (row: UsageRow) => number) =>
    starts.map((startMs) => {
      const day = new Date(startMs).toISOString().slice(0, 10);
      return rows.reduce((sum, row) => sum + (row.day === day ? read(row) : 0), 0);
    });
  return html`<section id="chart" class="card" aria-labelledby="chart-title"><h2 id="chart-title">Tokens by day</h2>${chart(
    {
      label: "Input and output tokens by day; the table below has the figures.",
      kind: "bars",
      x: starts.map((startMs) => startMs / 1000),
      series: [
        { label: "Input", values: of((row) => row.input_tokens) },
        { label: "Output", values: of((row) => row.output_tokens) },
      ],
    },
  )}</section>`;
}

const noTable = ({ message }: Refusal): Html =>
  html`<div id="rows" class="empty"><h2>Too many rows</h2><p>${untrusted(message, 1_000)}</p></div>`;

function table(rows: readonly UsageRow[], groups: readonly UsageGroup[]): Html {
  if (rows.length === 0) {
    return html`<div id="rows" class="empty"><h2>Nothing was used</h2><p>Lines count here as soon as they have an answer.</p></div>`;
  }
  return html`<div id="rows"><div class="scroll" tabindex="0" role="region" aria-label="Usage"><table>
<thead><tr>${groups.map((group, at) => html`<th scope="col"${at === 0 ? "" : html` class="middle"`}>${group.replace(/^./, (first) => first.toUpperCase())}</th>`)}<th scope="col" class="number middle">Lines</th><th scope="col" class="number">Input tokens<span class="under narrow">Output tokens</span></th><th scope="col" class="number middle">Cached</th><th scope="col" class="number middle">Output tokens</th><th scope="col" class="number">Cost</th></tr></thead>
<tbody>${rows.slice(0, MAX_ROWS).map((row) => usageRow(row, groups))}</tbody>
</table></div>${rows.length > MAX_ROWS ? html`<p class="dim">The first ${formatCount(MAX_ROWS)} of ${formatCount(rows.length)} rows. The CSV has all.</p>` : ""}</div>`;
}

/** In a narrow window the first cell and the one of the input tokens have what has no column there. */
function usageRow(row: UsageRow, groups: readonly UsageGroup[]): Html {
  const name = (group: UsageGroup) => untrusted(row[group] ?? "", 80);
  const others = groups.slice(1).map((group) => html`${name(group)} · `);
  return html`<tr>${groups.map((group, at) => html`<td class="${group === "model" ? "model" : ""} ${at === 0 ? "" : "middle"}">${name(group)}${at === 0 ? html`<span class="dim under narrow">${others}${formatLines(row.requests)}</span>` : ""}</td>`)}<td class="number middle">${formatCount(row.requests)}</td><td class="number">${formatCount(row.input_tokens)}<span class="dim under narrow">${formatCount(row.output_tokens)}</span></td><td class="number middle">${formatCount(row.cached_input_tokens)}</td><td class="number middle">${formatCount(row.output_tokens)}</td><td class="number">${row.cost === null ? html`<span class="dim">no price</span>` : formatMoney(row.cost.amount, row.cost.currency)}</td></tr>`;
}
