/** The place of a chart, with its data. `assets/charts.js` draws it with uPlot. */
import { type Html, html } from "./html.ts";

export interface Chart {
  /** What the chart shows, for people who do not see it. */
  readonly label: string;
  readonly kind: "bars" | "lines";
  /** Unix seconds. */
  readonly x: readonly number[];
  readonly series: readonly { readonly label: string; readonly values: readonly number[] }[];
}

export const chart = ({ label, kind, x, series }: Chart): Html =>
  html`<div class="chart" role="img" aria-label="${label}" data-kind="${kind}" data-points="${JSON.stringify([x, ...series.map(({ values }) => values)])}" data-labels="${JSON.stringify(series.map((each) => each.label))}"></div>`;

/** A chart of values that the page shows: a point is added whenever the page is brought up to date. */
export const liveChart = (label: string, names: readonly string[]): Html =>
  html`<div class="chart" role="img" aria-label="${label}" data-kind="lines" data-labels="${JSON.stringify(names)}"></div>`;
