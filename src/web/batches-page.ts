/** The list of batches. */
import type { BatchObject } from "../contract/batch.ts";
import { filterForm, filterOf } from "./batch-filter.ts";
import { inputNameOf, namesOf } from "./batch-names.ts";
import { formatCompact, formatMoney, time } from "./format.ts";
import { type Html, html, untrusted } from "./html.ts";
import { pageLinks, pageParams } from "./list-pages.ts";
import { type Asked, type ListOf, type Page, type Part, readFor } from "./page.ts";
import { progressBar, progressText } from "./progress.ts";
import { hasEnded, statusPill } from "./status.ts";

const ROWS = 25;

export const batchesPage: Page = {
  path: "/",
  pollMs: 2_000,
  async view(asked) {
    const params = pageParams(asked, ROWS);
    for (const [name, value] of Object.entries(filterOf(asked))) params.set(name, value);
    const answer = await readFor<ListOf<BatchObject>>(asked, `/v1/batches?${params}`);
    if (!answer.ok) return answer;
    const { data } = answer.value;
    const names = await Promise.all(data.map((batch) => inputNameOf(asked, batch)));
    const rows = data.map(
      (batch, at): Part => ({ id: `row-${batch.id}`, html: row(asked, batch, names[at] ?? null) }),
    );
    const list = {
      id: "batches",
      html: html`<section id="batches">${rows.length === 0 ? empty(asked) : table(asked, rows, answer.value)}</section>`,
      pieces: rows,
    };
    return {
      ok: true,
      value: { title: "Batches", parts: [heading(asked), list], isOver: false },
    };
  },
};

const heading = (asked: Asked): Part => ({
  id: "heading",
  html: html`<div id="heading"><div class="head"><h1>Batches</h1>${
    asked.caller.scopes.includes("write")
      ? html`<a class="button primary" href="${asked.root}new">New batch</a>`
      : ""
  }</div>${filterForm(asked)}</div>`,
});

function empty({ query, caller }: Asked): Html {
  if (query.size > 0)
    return html`<div class="empty"><h2>No batch matches</h2><p><a href="./">Show all batches</a></p></div>`;
  return html`<div class="empty"><h2>No batches yet</h2><p>${
    caller.scopes.includes("write")
      ? html`<a href="./new">Create one</a> from a JSONL or CSV file, here or by the API. It appears by itself.`
      : "They appear by themselves."
  }</p></div>`;
}

const table = (
  asked: Asked,
  rows: readonly Part[],
  shown: ListOf<BatchObject>,
): Html => html`<div class="scroll" tabindex="0" role="region" aria-label="List of batches"><table>
<thead><tr><th scope="col">Batch</th><th scope="col">Status</th><th scope="col" class="bar-column">Progress</th><th scope="col" class="wide">Model</th><th scope="col" class="wide number">Tokens</th><th scope="col" class="wide number">Cost</th><th scope="col" class="middle">Created</th><th scope="col" class="middle">Done</th></tr></thead>
<tbody>${rows.map(({ html: each }) => each)}</tbody>
</table></div>
${pageLinks(asked, { path: "./", shown })}`;

const row = ({ root }: Asked, batch: BatchObject, inputName: string | null): Html => {
  const { id, request_counts: counts, x_batchd: own } = batch;
  return html`<tr id="row-${id}">
<th scope="row"><a class="id" href="${root}batches/${id}">${shortId(id)}</a> <span class="dim under">${namesOf(batch, inputName)}</span></th>
<td>${statusPill(batch)}${own.at_risk && !hasEnded(batch) ? html` <span class="pill bad">at risk</span>` : ""}</td>
<td class="bar-column">${progressBar(counts, `Progress of ${id}`)}<span class="under">${progressText(batch)}${counts.failed > 0 ? html` <span class="fault">${formatCompact(counts.failed)} failed</span>` : ""}</span></td>
<td class="wide model">${batch.model === null ? html`<span class="dim">–</span>` : untrusted(batch.model, 60)}<span class="dim under">${batch.endpoint.replace("/v1/", "")}</span></td>
<td class="wide number">${formatCompact(batch.usage.total_tokens)}</td>
<td class="wide number">${own.cost === null ? html`<span class="dim">–</span>` : formatMoney(own.cost.so_far, own.cost.currency)}</td>
<td class="middle">${time(batch.created_at, "relative")}</td>
<td class="middle">${doneAt(batch)}</td>
</tr>`;
};

/** The first digits of an id are the time, which batches share; the last ones tell them apart. */
const shortId = (id: string): string => `batch_…${id.slice(-8)}`;

function doneAt(batch: BatchObject): Html {
  const endedAt = endOf(batch);
  if (endedAt !== null) return time(endedAt, "relative");
  const { eta } = batch.x_batchd;
  return eta === null
    ? html`<span class="dim">–</span>`
    : html`${time(eta, "relative")}<span class="dim under">expected</span>`;
}

export const endOf = (batch: BatchObject): number | null =>
  batch.completed_at ?? batch.failed_at ?? batch.expired_at ?? batch.cancelled_at ?? null;
