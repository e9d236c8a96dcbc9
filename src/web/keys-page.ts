/** The keys that were made at run time, and the projects that have used something. For administrators. */
import { DEFAULT_PROJECT, type KeyObject } from "../contract/key.ts";
import { DEFAULT_SCOPES, SCOPES } from "../contract/scope.ts";
import type { UsageList, UsageRow } from "../contract/usage.ts";
import { actionButton } from "./batch-actions.ts";
import { NAME_FIELD } from "./fields.ts";
import { formatCount, formatMoney, time } from "./format.ts";
import { type Html, html, untrusted } from "./html.ts";
import { pageLinks, pageParams } from "./list-pages.ts";
import { type Asked, type ListOf, type Page, readFor } from "./page.ts";

const ROWS = 50;
const MAX_PROJECTS = 500;

export const keysPage: Page = {
  path: "/keys",
  pollMs: 2_000,
  scripts: ["keys.js"],
  async view(asked) {
    const params = pageParams(asked, ROWS);
    const keys = await readFor<ListOf<KeyObject>>(asked, `/v1/admin/keys?${params}`);
    if (!keys.ok) return keys;
    const parts = [
      { id: "heading", html: heading() },
      { id: "keys", html: keyTable(asked, keys.value) },
      // A sum over all usage may take a second, which no open page is to cost again and again.
      ...(asked.isPoll ? [] : [{ id: "projects", html: await projectsOf(asked) }]),
    ];
    return { ok: true, value: { title: "Keys and projects", parts, isOver: false } };
  },
};

/** The button is off before its script is there, as it is for a new batch. */
const heading =
  (): Html => html`<div id="heading"><div class="head"><h1>Keys and projects</h1></div>
<form id="new-key" class="card drop">
<h2>New key</h2>
<div class="fields">
<label>Name <input name="name" ${NAME_FIELD}></label>
<label>Project <input name="project" value="${DEFAULT_PROJECT}" ${NAME_FIELD}></label>
<label>Ends after <select name="days"><option value="">never</option><option value="1">1 day</option><option value="30">30 days</option><option value="90">90 days</option><option value="365">365 days</option></select></label>
</div>
<fieldset><legend>May</legend>${SCOPES.map((scope) => html`<label class="check"><input type="checkbox" name="scopes" value="${scope}"${DEFAULT_SCOPES.includes(scope) ? html` checked` : ""}> ${scope}</label>`)}</fieldset>
<div class="buttons"><button class="primary" autocomplete="off" disabled>Create key</button><span id="fault" class="fault" role="alert"></span></div>
</form>
<dialog id="made" aria-labelledby="made-title"><form method="dialog"><h2 id="made-title">The new key</h2><p>Copy it now. No page and no answer shows it again.</p><pre id="made-key" tabindex="0"></pre><div class="buttons"><button type="button" class="plain" id="copy-key" data-copy="">Copy</button><button class="primary">Done</button></div></form></dialog></div>`;

function keyTable(asked: Asked, shown: ListOf<KeyObject>): Html {
  if (shown.data.length === 0 && !asked.query.has("after")) {
    return html`<div id="keys" class="empty"><h2>No keys were made at run time</h2><p>Keys of the configuration file are not listed.</p></div>`;
  }
  return html`<section id="keys"><div class="scroll" tabindex="0" role="region" aria-label="Keys"><table>
<thead><tr><th scope="col">Key</th><th scope="col" class="middle">Project</th><th scope="col">May</th><th scope="col" class="middle">Last used</th><th scope="col" class="middle">Ends</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
<tbody>${shown.data.map(keyRow)}</tbody>
</table></div>${pageLinks(asked, { path: "keys", shown })}</section>`;
}

/** The id keeps the button of a key with its key where others come and go. */
const keyRow = (key: KeyObject): Html => html`<tr id="key-${key.id}">
<th scope="row"><span class="name">${untrusted(key.name, 64)}</span><span class="dim under id">${key.id.slice(0, 12)}…</span><span class="dim under narrow">${untrusted(key.project, 64)}</span></th>
<td class="middle">${untrusted(key.project, 64)}</td>
<td>${key.scopes.join(", ")}</td>
<td class="middle">${key.last_used_at === null ? html`<span class="dim">never</span>` : time(key.last_used_at, "relative")}</td>
<td class="middle">${key.expires_at === null ? html`<span class="dim">never</span>` : time(key.expires_at, "relative")}</td>
<td><div class="actions end">${actionButton({
  label: "Revoke",
  method: "DELETE",
  path: `admin/keys/${key.id}`,
  tone: "quiet",
  ask: {
    title: "Revoke this key?",
    detail: `Programs and people who use ${key.name} are refused within seconds. It cannot be brought back.`,
  },
})}</div></td>
</tr>`;

async function projectsOf(asked: Asked): Promise<Html> {
  const usage = await readFor<UsageList>(asked, "/v1/usage?group_by=project");
  return html`<section id="projects" class="card" aria-labelledby="projects-title">
<h2 id="projects-title">Projects in the last 30 days</h2>
${usage.ok ? projectTable(usage.value.data) : html`<p>${untrusted(usage.message, 1_000)}</p>`}
</section>`;
}

const projectTable = (rows: readonly UsageRow[]): Html =>
  rows.length === 0
    ? html`<p class="dim">No project has used anything.</p>`
    : html`<div class="scroll" tabindex="0" role="region" aria-label="Projects"><table>
<thead><tr><th scope="col">Project</th><th scope="col" class="number">Lines</th><th scope="col" class="number middle">Input tokens</th><th scope="col" class="number middle">Output tokens</th><th scope="col" class="number">Cost</th></tr></thead>
<tbody>${rows.slice(0, MAX_PROJECTS).map((row) => html`<tr><th scope="row">${untrusted(row.project ?? "", 64)}</th><td class="number">${formatCount(row.requests)}</td><td class="number middle">${formatCount(row.input_tokens)}</td><td class="number middle">${formatCount(row.output_tokens)}</td><td class="number">${row.cost === null ? "–" : formatMoney(row.cost.amount, row.cost.currency)}</td></tr>`)}</tbody>
</table></div>${rows.length > MAX_PROJECTS ? html`<p class="dim">The first ${formatCount(MAX_PROJECTS)} of ${formatCount(rows.length)} rows. The CSV of <a href="usage?by=project">Usage</a> has all.</p>` : ""}`;
