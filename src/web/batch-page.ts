/**
 * The page of one batch: its state, why it waits, its figures, charts and lines. It asks the API and nothing else, and it
 * must write texts of clients and models through `untrusted`.
 */
import type { BatchObject } from "../contract/batch.ts";
import type { PauseReason } from "../contract/batch-extension.ts";
import type { DeliveryObject } from "../contract/delivery.ts";
import type { BatchProgressObject } from "../contract/progress.ts";
import { batchActions, budgetForm, type Retried } from "./batch-actions.ts";
import { chartsPart } from "./batch-charts.ts";
import { deliveriesPart, isUnderWay } from "./batch-deliveries.ts";
import { failuresPart, faultsPart } from "./batch-failures.ts";
import { linesPart } from "./batch-lines.ts";
import { inputNameOf, namesOf, titleOf } from "./batch-names.ts";
import { timelinePart } from "./batch-timeline.ts";
import { endOf } from "./batches-page.ts";
import { formatCompact, formatCount, formatDuration, formatMoney, time } from "./format.ts";
import { figure, type Html, html, untrusted } from "./html.ts";
import { type Asked, type ListOf, type Page, type Part, readFor } from "./page.ts";
import { progressBar, progressText } from "./progress.ts";
import { hasEnded, statusPill, WAITING_TEXTS } from "./status.ts";

export const batchPage: Page = {
  path: "/batches/:id",
  pollMs: 1_000,
  scripts: ["uplot.js", "charts.js", "lines.js"],
  styles: ["uplot.css"],
  async view(asked) {
    const path = `/v1/batches/${encodeURIComponent(asked.id)}`;
    const [answer, progress, deliveries] = await Promise.all([
      readFor<BatchObject>(asked, path),
      readFor<BatchProgressObject>(asked, `${path}/progress`),
      readFor<ListOf<DeliveryObject>>(asked, `${path}/deliveries`),
    ]);
    if (!answer.ok) return answer;
    if (!progress.ok) return progress;
    if (!deliveries.ok) return deliveries;
    const batch = answer.value;
    const [inputName, otherRuns] = await Promise.all([
      inputNameOf(asked, batch),
      otherRunsOf(asked, batch),
    ]);
    const parts = [
      newsPart(batch),
      heading(asked, { batch, otherRuns }, inputName),
      noticePart(asked, batch),
      progressPart(batch),
      faultsPart(batch),
      failuresPart(batch),
      chartsPart(progress.value),
      factsPart(asked, batch),
      deliveriesPart(asked, batch, deliveries.value),
      linesPart(batch),
      timelinePart(batch),
    ];
    const isOver = hasEnded(batch) && !deliveries.value.data.some(isUnderWay);
    return { ok: true, value: { title: titleOf(batch, inputName), parts, isOver } };
  },
};

/**
 * Returns the batches of lines of this one that leave its failed lines as they are: those that ask about its answers, and those
 * that ended before a line ran.
 */
async function otherRunsOf(asked: Asked, batch: BatchObject): Promise<string[]> {
  if (!hasEnded(batch)) return [];
  const answers = await Promise.all(
    batch.x_batchd.retried_by.map((id) => readFor<BatchObject>(asked, `/v1/batches/${id}`)),
  );
  return answers
    .flatMap((answer) => (answer.ok ? [answer.value] : []))
    .filter((later) => asksAboutAnswers(later) || (hasEnded(later) && hasNoLines(later)))
    .map(({ id }) => id);
}

const asksAboutAnswers = ({ x_batchd: { from } }: BatchObject) =>
  from?.lines === "succeeded" || from?.template != null;

const hasNoLines = ({ request_counts: { total } }: BatchObject) => total === 0;

const heading = (asked: Asked, retried: Retried, inputName: string | null): Part => ({
  id: "heading",
  html: html`<div id="heading" class="head">
<div><p class="crumb"><a href="${asked.root}">Batches</a></p>
<h1 class="id">${retried.batch.id}</h1> <button type="button" class="quiet small" data-copy="${retried.batch.id}">Copy</button> ${statusPill(retried.batch)}${isAtRisk(retried.batch) ? html` <span class="pill bad">at risk</span>` : ""} <p class="dim">${namesOf(retried.batch, inputName)}</p></div>
${batchActions(asked, retried)}
</div>`,
});

/** What a screen reader reads out when it comes while the page is open. A pause that a person asked for has a note of its own. */
const newsPart = (batch: BatchObject): Part => ({
  id: "news",
  html: html`<p id="news" class="unseen" role="status">${newsOf(batch)}</p>`,
});

function newsOf(batch: BatchObject): string {
  if (hasEnded(batch)) return `The batch is ${batch.status}.`;
  const { paused } = batch.x_batchd;
  return paused === null || paused.reason === "requested" ? "" : "The batch is paused.";
}

const isAtRisk = (batch: BatchObject) => batch.x_batchd.at_risk && !hasEnded(batch);

/** Why the batch does not go on, or may not be done in time. Empty for a batch that is all right. */
function noticePart(asked: Asked, batch: BatchObject): Part {
  const { paused, waiting, common_failure: common } = batch.x_batchd;
  const notices: Html[] = [];
  if (paused !== null) {
    notices.push(
      notice(
        "Paused",
        html`${PAUSES[paused.reason]} It paused ${time(paused.since, "relative")}. Its window goes on: it ends ${time(batch.expires_at, "relative")}.${budgetForm(asked, batch)}`,
      ),
    );
  }
  if (waiting !== null) {
    notices.push(
      notice(
        "Waiting",
        html`${WAITING_TEXTS[waiting.reason]} Since ${time(waiting.since, "relative")}.${waiting.upstream_error === null ? "" : html` <code>${untrusted(waiting.upstream_error)}</code>`}`,
      ),
    );
  }
  if (isAtRisk(batch)) {
    notices.push(
      notice(
        "At risk",
        html`It may not be done when its window ends ${time(batch.expires_at, "relative")}. Lines without an answer then become errors.`,
      ),
    );
  }
  if (common !== null) {
    notices.push(
      notice(
        "All lines fail alike",
        html`The first ${formatCount(common.lines)} lines have failed in the same way${common.status_code === null ? "" : ` (${common.status_code})`}: <code>${untrusted(common.message ?? common.code ?? "no message")}</code>`,
      ),
    );
  }
  return { id: "notices", html: html`<div id="notices" class="notices">${notices}</div>` };
}

const PAUSES: Readonly<Record<PauseReason, string>> = {
  requested: "",
  sample: "The lines of its sample have ended: look at them, then resume or cancel.",
  budget: "Its next line might exceed its budget: raise the budget, then resume.",
  tokens_per_day:
    "The project has used its tokens of the day. It goes on by itself tomorrow (UTC).",
  cost_per_month: "The project has used its money of the month. It goes on by itself next month.",
};

const notice = (title: string, text: Html): Html =>
  html`<div class="notice"><strong>${title}</strong> <span>${text}</span></div>`;

function progressPart(batch: BatchObject): Part {
  const { request_counts: counts } = batch;
  const left = counts.total - counts.completed - counts.failed;
  return {
    id: "progress",
    html: html`<section id="progress" class="card" aria-labelledby="progress-title">
<div class="row"><h2 id="progress-title">Progress</h2><span class="big">${progressText(batch)}</span></div>
${progressBar(counts, "Progress of the batch")}
<dl class="figures">
${figure("Answered", formatCount(counts.completed))}
${figure("Failed", formatCount(counts.failed), counts.failed > 0 ? "fault" : undefined)}
${figure("Left", formatCount(left))}
${expected(batch)}
</dl>
</section>`,
  };
}

function expected(batch: BatchObject): Html {
  const { eta, queue_position: place, paused } = batch.x_batchd;
  const unknown = paused === null ? "not known yet" : "once it goes on";
  const endedAt = endOf(batch);
  if (endedAt !== null) return figure("Took", formatDuration(endedAt - batch.created_at));
  return html`${figure("Expected", eta === null ? html`<span class="dim">${unknown}</span>` : time(eta, "relative"))}
${figure("Window ends", time(batch.expires_at, "relative"))}
${place === null || place === 0 ? "" : figure("Place in the queue", formatCount(place))}`;
}

function factsPart({ root }: Asked, batch: BatchObject): Part {
  const { usage, x_batchd: own } = batch;
  const cached = usage.input_tokens_details.cached_tokens;
  const reasoning = usage.output_tokens_details.reasoning_tokens;
  return {
    id: "facts",
    html: html`<section id="facts" class="card" aria-labelledby="facts-title">
<h2 id="facts-title">Facts</h2>
<dl class="facts">
${figure("Model", batch.model === null ? unknownModel(batch) : untrusted(batch.model))}
${figure("Endpoint", html`<code>${batch.endpoint}</code>`)}
${figure("Input tokens", html`${formatCount(usage.input_tokens)}${cached > 0 ? html` <span class="dim">${formatCompact(cached)} cached</span>` : ""}`)}
${figure("Output tokens", html`${formatCount(usage.output_tokens)}${reasoning > 0 ? html` <span class="dim">${formatCompact(reasoning)} reasoning</span>` : ""}`)}
${cost(batch)}
${own.budget === null ? "" : figure("Budget", formatMoney(own.budget, own.cost?.currency ?? ""))}
${figure("Priority", String(own.priority))}
${figure("Window", batch.completion_window)}
${figure("Input", fileLink(root, batch.input_file_id))}
${own.from === null ? "" : figure(own.from.template === null ? "Runs again" : "Asks about", html`${own.from.lines} lines of ${batchLink(root, own.from.batch)}`)}
${own.retried_by.length === 0 ? "" : figure("Run again by", html`${own.retried_by.map((id) => batchLink(root, id))}`)}
${Object.entries(batch.metadata ?? {}).map(([key, value]) => figure(untrusted(key, 64), untrusted(value, 512)))}
</dl>
</section>`,
  };
}

/** A batch that ended before its lines were read never has a model. */
const unknownModel = (batch: BatchObject): Html =>
  html`<span class="dim">${hasEnded(batch) ? "none" : "known after validation"}</span>`;

function cost(batch: BatchObject): Html {
  const money = batch.x_batchd.cost;
  if (money === null && batch.model === null) return figure("Cost", unknownModel(batch));
  if (money === null) return figure("Cost", html`<span class="dim">no price for its model</span>`);
  const projected =
    money.projected === null || money.projected === money.so_far
      ? ""
      : html` <span class="dim">of about ${formatMoney(money.projected, money.currency)}</span>`;
  const name = hasEnded(batch) ? "Cost" : "Cost so far";
  return figure(name, html`${formatMoney(money.so_far, money.currency)}${projected}`);
}

const batchLink = (root: string, id: string): Html =>
  html`<a class="id" href="${root}batches/${id}">${id}</a>`;

/** The id of an input is a text of a client, as it is not looked up when the batch is made. */
const fileLink = (root: string, id: string): Html =>
  html`<a class="id" href="${root}web/v1/files/${encodeURIComponent(id)}/content" download>${untrusted(id)}</a>`;
