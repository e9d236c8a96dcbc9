/** The place of the table of lines. `assets/lines.js` fills it from `GET /v1/batches/{id}/lines`, also while the batch runs. */
import type { BatchObject } from "../contract/batch.ts";
import { LINE_STATUSES } from "../contract/lines.ts";
import { html } from "./html.ts";
import type { Part } from "./page.ts";

const LABELS: Readonly<Record<(typeof LINE_STATUSES)[number], string>> = {
  succeeded: "answered",
  failed: "failed",
  waiting: "waiting",
};

export const linesPart = ({ id }: BatchObject): Part => ({
  id: "lines",
  html: html`<section id="lines" class="card kept" aria-labelledby="lines-title" data-batch="${id}">
<div class="row"><h2 id="lines-title">Lines</h2>
<form id="lines-form" method="dialog" autocomplete="off" class="filters" role="search" aria-label="Find lines">
<label>Show <select name="status"><option value="">all</option>${LINE_STATUSES.map((each) => html`<option value="${each}">${LABELS[each]}</option>`)}</select></label>
<label>custom_id <input name="custom_id" autocomplete="off" spellcheck="false" placeholder="exact"></label>
<span class="buttons"><button>Find</button></span>
</form></div>
<noscript><p class="dim">Without JavaScript the lines are not shown. They are in the files of answers and errors at the top.</p></noscript>
<div id="lines-table" hidden class="scroll" tabindex="0" role="region" aria-label="Lines of the batch"><table>
<thead><tr><th scope="col" class="number">Line</th><th scope="col">custom_id</th><th scope="col" class="middle">Question</th><th scope="col">Answer</th><th scope="col"><span class="unseen">All of it</span></th></tr></thead>
<tbody id="lines-rows"></tbody>
</table></div>
<div class="row"><span id="lines-state" class="dim" role="status"></span><span class="buttons"><button type="button" id="lines-first" hidden>First lines</button><button type="button" id="lines-next" hidden>Next lines</button></span></div>
<dialog id="raw" aria-labelledby="raw-title" class="broad"><form method="dialog"><h2 id="raw-title"></h2><pre id="raw-text" tabindex="0"></pre><div class="buttons"><button class="plain" autofocus>Close</button></div></form></dialog>
</section>`,
});
