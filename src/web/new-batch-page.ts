/** The form for a new batch, from a JSONL, CSV or TSV file or from a file that is uploaded already. */
import { BATCH_ENDPOINTS } from "../contract/batch.ts";
import { PRIORITIES, SAMPLE_LINES } from "../contract/create-batch.ts";
import type { FileObject } from "../contract/file.ts";
import type { ModelObject } from "../contract/model.ts";
import { DEFAULT_COMPLETION_WINDOW, WINDOW_PATTERN } from "../contract/window.ts";
import type { Answer } from "./api.ts";
import { AMOUNT_FIELD, uploadField, uploadState } from "./fields.ts";
import { formatBytes } from "./format.ts";
import { type Html, html, untrusted } from "./html.ts";
import { type ListOf, type Page, readFor, type View } from "./page.ts";

/** Its button is off before its script is there: the browser would take the form to an address, and lose what is filled in. */
export const newBatchPage: Page = {
  path: "/new",
  pollMs: null,
  scripts: ["papaparse.js", "new-batch.js"],
  async view(asked): Promise<Answer<View>> {
    if (!asked.caller.scopes.includes("write")) return NOT_ALLOWED;
    const models = await readFor<ListOf<ModelObject>>(asked, "/v1/models");
    const names = models.ok ? models.value.data.map(({ id }) => id) : [];
    const fileId = asked.query.get("file") ?? "";
    // No id has dots alone, which in a path lead to another one.
    const file = /^\.*$/.test(fileId)
      ? null
      : await readFor<FileObject>(asked, `/v1/files/${encodeURIComponent(fileId)}`);
    if (file !== null && !file.ok) return file;
    const main = html`<form id="new" class="new" novalidate>
<div class="head"><div><p class="crumb"><a href="${asked.root}">Batches</a></p><h1>New batch</h1></div></div>
${file === null ? inputCard() : knownInput(file.value)}
${optionsCard(names)}
${uploadState}
<div class="buttons"><button class="primary" id="create" autocomplete="off" disabled>Create batch</button><span id="fault" class="fault" role="alert"></span></div>
</form>`;
    return {
      ok: true,
      value: { title: "New batch", parts: [{ id: "new", html: main }], isOver: true },
    };
  },
};

const NOT_ALLOWED = {
  ok: false,
  status: 403,
  message:
    "Your key may look, but not create batches. Ask the operator of this server for a key with the scope write.",
} as const;

const inputCard = (): Html => html`<section class="card drop" aria-labelledby="input-title">
<h2 id="input-title">Input</h2>
${uploadField(".jsonl,.csv,.tsv,.txt,.gz,.zst", "JSONL, also packed, or CSV or TSV with a header row")}
<div id="checked" role="status"></div>
<div id="template" class="template" hidden>
<label for="prompt">Prompt for each row, with <code>{{column}}</code> in the place of values</label>
<p id="columns" class="dim"></p>
<textarea id="prompt" rows="4" spellcheck="false"></textarea>
<label for="system">System prompt <span class="dim">optional</span></label>
<textarea id="system" rows="2"></textarea>
<h3>The first three lines</h3>
<div id="first-lines"></div>
</div>
</section>`;

const knownInput = ({
  id,
  filename,
  bytes,
}: FileObject): Html => html`<section class="card" aria-labelledby="input-title">
<h2 id="input-title">Input</h2>
<p>${untrusted(filename)} <span class="dim">${formatBytes(bytes)} · <span class="id">${id}</span></span></p>
<input type="hidden" name="known" value="${id}">
</section>`;

const optionsCard = (
  models: readonly string[],
): Html => html`<section class="card" aria-labelledby="options-title">
<h2 id="options-title">Options</h2>
<div class="fields">
<label>Endpoint <select name="endpoint">${BATCH_ENDPOINTS.map((each) => html`<option>${each}</option>`)}</select></label>
<label><span>Model <span class="dim">for lines that name none</span></span><input name="model" list="models" autocomplete="off" spellcheck="false"></label>
<datalist id="models">${models.filter((name) => name !== "*").map((name) => html`<option value="${name}"></option>`)}</datalist>
<label><span>Window <span class="dim">hours or days in which it ends</span></span><input name="window" value="${DEFAULT_COMPLETION_WINDOW}" required pattern="${WINDOW_PATTERN}" title="Write hours or days, such as 24h or 7d" autocomplete="off"></label>
<label><span>Priority <span class="dim">${PRIORITIES.min} to ${PRIORITIES.max}</span></span><input name="priority" type="number" min="${PRIORITIES.min}" max="${PRIORITIES.max}" value="${PRIORITIES.default}"></label>
<label><span>Sample <span class="dim">lines to run before it pauses</span></span><input name="sample" type="number" min="${SAMPLE_LINES.min}" max="${SAMPLE_LINES.max}" placeholder="none"></label>
<label><span>Budget <span class="dim">pauses before it costs more</span></span><input name="budget" ${AMOUNT_FIELD} placeholder="none, or such as 5.00"></label>
</div>
<label><span>Metadata <span class="dim">one key=value a line</span></span><textarea name="metadata" rows="2" spellcheck="false"></textarea></label>
</section>`;
