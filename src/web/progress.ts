/** The bar of a batch. Its widths are attributes of SVG, because the policy of the page allows no inline styles. */
import type { BatchObject } from "../contract/batch.ts";
import { formatCount, formatPercent } from "./format.ts";
import { type Html, html } from "./html.ts";
import { hasEnded } from "./status.ts";

type Counts = BatchObject["request_counts"];

/** The width of the bar in its own units. */
const WIDTH = 1000;

export function progressBar({ total, completed, failed }: Counts, label: string): Html {
  const share = (count: number) => (total === 0 ? 0 : Math.round((count / total) * WIDTH));
  const done = share(completed);
  const bad = failed > 0 ? Math.max(share(failed), 4) : 0;
  const ended = completed + failed;
  return html`<div class="progress" role="progressbar" aria-label="${label}" aria-valuemin="0" aria-valuemax="${total}" aria-valuenow="${ended}" aria-valuetext="${formatCount(ended)} of ${formatCount(total)} lines, ${formatCount(failed)} failed"><svg viewBox="0 0 ${WIDTH} 10" preserveAspectRatio="none" aria-hidden="true"><rect class="track" width="${WIDTH}" height="10"/><rect class="done" width="${done}" height="10"/><rect class="bad" x="${Math.min(done, WIDTH - bad)}" width="${bad}" height="10"/></svg></div>`;
}

/** Returns the counts as a phrase, such as `12,000 of 50,000 · 24%`. */
export const progressText = (batch: BatchObject): string => {
  const { total, completed, failed } = batch.request_counts;
  if (total === 0) return hasEnded(batch) ? "no lines" : "no lines yet";
  return `${formatCount(completed + failed)} of ${formatCount(total)} · ${formatPercent(completed + failed, total)}`;
};
