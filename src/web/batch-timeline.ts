/** The statuses that a batch has had, with the time that each took. */
import type { BatchObject } from "../contract/batch.ts";
import { formatDuration, time } from "./format.ts";
import { html } from "./html.ts";
import type { Part } from "./page.ts";

interface Step {
  readonly label: string;
  readonly at: number;
}

function stepsOf(batch: BatchObject): Step[] {
  const stamps: readonly (readonly [string, number | null | undefined])[] = [
    ["Created", batch.created_at],
    ["Started", batch.in_progress_at],
    ["Cancelled by a client", batch.cancelling_at],
    ["Writing results", batch.finalizing_at],
    ["Completed", batch.completed_at],
    ["Failed", batch.failed_at],
    ["Expired", batch.expired_at],
    ["Cancelled", batch.cancelled_at],
  ];
  return stamps
    .flatMap(([label, at]) => (at === null || at === undefined ? [] : [{ label, at }]))
    .sort((a, b) => a.at - b.at);
}

export function timelinePart(batch: BatchObject): Part {
  const steps = stepsOf(batch);
  return {
    id: "timeline",
    html: html`<section id="timeline" class="card" aria-labelledby="timeline-title">
<h2 id="timeline-title">Timeline</h2>
<ol class="timeline">${steps.map(({ label, at }, index) => {
      const before = steps[index - 1];
      return html`<li><span class="step">${label}</span> <span class="dim">${time(at)}${before === undefined ? "" : ` · after ${formatDuration(at - before.at)}`}</span></li>`;
    })}</ol>
</section>`,
  };
}
