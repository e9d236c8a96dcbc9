/**
 * The deliveries of a batch: where its results went, or why they did not, and a form for another one. The API names no
 * locations, so a person types the name of one.
 */
import type { BatchObject } from "../contract/batch.ts";
import type { DeliveryObject } from "../contract/delivery.ts";
import { RESULT_FORMATS } from "../contract/results.ts";
import { actionButton } from "./batch-actions.ts";
import { formatCount, time } from "./format.ts";
import { type Html, html, untrusted } from "./html.ts";
import type { Asked, ListOf, Part } from "./page.ts";
import { hasEnded, pill } from "./status.ts";

export const isUnderWay = ({ status }: DeliveryObject): boolean =>
  status === "pending" || status === "delivering";

const TONES: Readonly<Record<DeliveryObject["status"], string>> = {
  pending: "wait",
  delivering: "active",
  delivered: "good",
  failed: "bad",
};

export function deliveriesPart(
  asked: Asked,
  batch: BatchObject,
  { data, has_more: hasMore }: ListOf<DeliveryObject>,
): Part {
  const mayWrite = asked.caller.scopes.includes("write");
  const canDeliver = mayWrite && hasEnded(batch) && batch.status !== "failed";
  // It may come while the page is open.
  if (data.length === 0 && !canDeliver)
    return { id: "deliveries", html: html`<section id="deliveries" hidden></section>` };
  return {
    id: "deliveries",
    html: html`<section id="deliveries" class="card" aria-labelledby="deliveries-title">
<h2 id="deliveries-title">Deliveries</h2>
${data.length === 0 ? html`<p class="dim">The results were not delivered to a location yet.</p>` : html`<ul class="deliveries">${data.map((each) => item(each, mayWrite))}</ul>`}
${hasMore ? html`<p class="dim">The latest ${formatCount(data.length)}. The API has the older ones.</p>` : ""}
${canDeliver ? form(batch) : ""}
</section>`,
  };
}

function item(delivery: DeliveryObject, mayWrite: boolean): Html {
  const { id, batch_id: batchId, status, path, format } = delivery;
  return html`<li id="delivery-${id}"><div class="row"><span>${pill(TONES[status], status)} ${placeOf(delivery)}${path === null ? "" : html` <span class="dim">${untrusted(path)}</span>`} <span class="dim">${format}</span></span>${
    mayWrite && isUnderWay(delivery)
      ? actionButton({
          label: "Cancel delivery",
          method: "POST",
          path: `batches/${batchId}/deliveries/${id}/cancel`,
          tone: "quiet",
        })
      : ""
  }</div>
${detailOf(delivery)}
</li>`;
}

const placeOf = ({ location, s3 }: DeliveryObject): Html =>
  location === null
    ? html`bucket <strong>${untrusted(s3?.bucket ?? "")}</strong>`
    : html`<strong>${untrusted(location)}</strong>`;

/** Where the results are, or what the last attempt came to. */
function detailOf(delivery: DeliveryObject): Html {
  const { address, error, attempts, created_at, ended_at, next_attempt_at: next } = delivery;
  const when =
    ended_at === null
      ? html`Asked for ${time(created_at, "relative")}${attempts > 0 ? ` · ${formatCount(attempts)} ${attempts === 1 ? "attempt" : "attempts"}` : ""}${attempts > 0 && next !== null && delivery.status === "pending" ? html` · next ${time(next, "relative")}` : ""}`
      : html`Ended ${time(ended_at, "relative")}`;
  return html`${address === null ? "" : html`<code>${untrusted(address, 1_000)}</code>`}
${error === null ? "" : html`<span class="${delivery.status === "failed" ? "fault" : ""}">${untrusted(error.message, 1_000)}</span>`}
<span class="dim">${when}</span>`;
}

/** Its method sends nothing before the script is there, as with the form for a budget. */
const form = ({ id }: BatchObject): Html =>
  html`<form id="deliver" method="dialog" class="filters" autocomplete="off" aria-label="Deliver the results" data-path="batches/${id}/deliveries" data-next="again">
<label>Location <input name="location" required maxlength="128" autocomplete="off" spellcheck="false" placeholder="its name"></label>
<label>Folder <input name="path" maxlength="1024" autocomplete="off" spellcheck="false" placeholder="may be left out"></label>
<label>Format <select name="format">${RESULT_FORMATS.map((each) => html`<option value="${each}">${each}</option>`)}</select></label>
<span class="buttons"><button>Deliver</button></span>
</form>`;
