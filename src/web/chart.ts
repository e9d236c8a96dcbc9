/** The place of a chart, with its data. `assets/charts.js` draws it with uPlot. */
import { type Html, html } from "./html.ts";

export interface Chart {
  /** What the chart shows, for people who do not see it. */
  readonly label: string;
  readonly kind: "bars" | "lines" | "steps" | "histogram";
  /** The values are Unix seconds, or the places of the bars in a histogram. */
  readonly x: readonly number[];
  readonly series: readonly { readonly label: string; readonly values: readonly number[] }[];
}

interface FollowingChart extends Chart {
  readonly id: string;
  /** The texts below the bars of a histogram. */
  readonly ticks?: readonly string[];
}

const labelsOf = ({ series }: Pick<Chart, "series">) =>
  JSON.stringify(series.map(({ label }) => label));
const pointsOf = ({ x, series }: Pick<Chart, "x" | "series">) =>
  JSON.stringify([x, ...series.map(({ values }) => values)]);

export const chart = (drawn: Chart): Html =>
  html`<div class="chart" role="img" aria-label="${drawn.label}" data-kind="${drawn.kind}" data-points="${pointsOf(drawn)}" data-labels="${labelsOf(drawn)}"></div>`;

/** A chart of values that the page shows: a point is added whenever the page is brought up to date. */
export const liveChart = (label: string, names: readonly string[]): Html =>
  html`<div class="chart" role="img" aria-label="${label}" data-kind="lines" data-labels="${JSON.stringify(names)}"></div>`;

/** A chart that is drawn anew when the page is brought up to date. Its data are beside it, as what is drawn stays as it is. */
export const followingChart = (drawn: FollowingChart): Html =>
  html`<div id="${drawn.id}" hidden data-points="${pointsOf(drawn)}" data-ticks="${JSON.stringify(drawn.ticks ?? [])}"></div><div class="chart" role="img" aria-label="${drawn.label}" data-kind="${drawn.kind}" data-from="${drawn.id}" data-labels="${labelsOf(drawn)}"></div>`;
