/** The course of a batch as charts, with the same figures as tables: lines and tokens per second, and how long lines took. */
import type { BatchProgressObject } from "../contract/progress.ts";
import { followingChart } from "./chart.ts";
import { formatCompact, formatCount, formatDuration, formatLines } from "./format.ts";
import { figure, type Html, html } from "./html.ts";
import type { Part } from "./page.ts";

type Point = BatchProgressObject["points"][number];
type Latency = NonNullable<BatchProgressObject["latency"]>;

/** The rows of a table that stands for a chart. */
const MAX_ROWS = 12;

export const chartsPart = ({ points, latency }: BatchProgressObject): Part => ({
  id: "course",
  html: html`<div id="course" class="grid">${points.length === 0 ? "" : rates(points)}${latency === null ? "" : latencies(latency)}</div>`,
});

const rates = (points: readonly Point[]): Html =>
  html`${rate(points, {
    id: "lines-rate",
    title: "Lines per second",
    read: (point) => point.lines_per_second,
  })}${rate(points, {
    id: "tokens-rate",
    title: "Tokens per second",
    read: (point) => point.tokens_per_second,
  })}`;

interface Rate {
  readonly id: string;
  readonly title: string;
  readonly read: (point: Point) => number;
}

const rate = (points: readonly Point[], { id, title, read }: Rate): Html =>
  html`<section class="card" aria-labelledby="${id}-title"><h2 id="${id}-title">${title} <span class="dim">over its life</span></h2>
${followingChart({
  id,
  label: `${title} over the life of the batch; the table below has the figures.`,
  kind: "steps",
  x: points.map(({ at }) => at),
  series: [{ label: title, values: points.map(read) }],
})}
${tableOf(
  ["After", "Lines ended", title],
  rowsOf(points, read).map(({ seconds, ended, perSecond }) => [
    formatDuration(seconds),
    formatCount(ended),
    formatRate(perSecond),
  ]),
)}
</section>`;

interface RateRow {
  readonly seconds: number;
  readonly ended: number;
  readonly perSecond: number;
}

/** Joins neighbouring points, so that the table has few rows and its rates are those of the whole times between. */
function rowsOf(points: readonly Point[], read: (point: Point) => number): RateRow[] {
  const startedAt = points[0]?.at ?? 0;
  const step = Math.max(1, Math.ceil((points.length - 1) / MAX_ROWS));
  const rows: RateRow[] = [];
  let sum = 0;
  let since = startedAt;
  for (const [at, point] of points.entries()) {
    sum += read(point) * (point.at - (points[at - 1]?.at ?? point.at));
    if (at === 0 || (at % step !== 0 && at !== points.length - 1)) continue;
    const seconds = point.at - since;
    const ended = point.completed + point.failed;
    rows.push({ seconds: point.at - startedAt, ended, perSecond: seconds > 0 ? sum / seconds : 0 });
    sum = 0;
    since = point.at;
  }
  return rows;
}

const formatRate = (perSecond: number): string =>
  perSecond < 10 ? String(Math.round(perSecond * 100) / 100) : formatCompact(Math.round(perSecond));

function latencies({ buckets, lines, ...percentiles }: Latency): Html {
  const first = buckets.findIndex((bucket) => bucket.lines > 0);
  const last = buckets.findLastIndex((bucket) => bucket.lines > 0);
  // A neighbour on either side shows that the lines end there.
  const shown = buckets
    .map((bucket, at) => ({ ...bucket, label: boundText(buckets, at) }))
    .slice(Math.max(0, first - 1), last + 2);
  return html`<section class="card" aria-labelledby="latency-title"><h2 id="latency-title">Latency <span class="dim">of ${formatLines(lines)}</span></h2>
${followingChart({
  id: "latency",
  label: "Lines by the time that they took; the table below has the figures.",
  kind: "histogram",
  x: shown.map((_, at) => at),
  ticks: shown.map(({ label }) => label),
  series: [{ label: "Lines", values: shown.map((bucket) => bucket.lines) }],
})}
<dl class="figures">${(
    [
      ["Half within", percentiles.p50_ms],
      ["90% within", percentiles.p90_ms],
      ["95% within", percentiles.p95_ms],
      ["99% within", percentiles.p99_ms],
    ] as const
  ).map(([name, ms]) => figure(name, formatMs(ms)))}</dl>
${tableOf(
  ["Time", "Lines"],
  shown.filter((each) => each.lines > 0).map((each) => [each.label, formatCount(each.lines)]),
)}
</section>`;
}

function boundText(buckets: Latency["buckets"], at: number): string {
  const to = buckets[at]?.up_to_ms;
  if (to === null || to === undefined) return `> ${formatMs(buckets[at - 1]?.up_to_ms ?? 0)}`;
  return `≤ ${formatMs(to)}`;
}

const formatMs = (ms: number): string => (ms < 1_000 ? `${ms} ms` : `${ms / 1_000} s`);

const tableOf = (heads: readonly string[], rows: readonly (readonly string[])[]): Html =>
  html`<details class="as-table"><summary>As a table</summary><table>
<thead><tr>${heads.map((head) => html`<th scope="col" class="number">${head}</th>`)}</tr></thead>
<tbody>${rows.map((row) => html`<tr>${row.map((cell) => html`<td class="number">${cell}</td>`)}</tr>`)}</tbody>
</table></details>`;
