/** The list of files: their size, their end and their first lines. */
import { DOWNLOADABLE_PURPOSES, type FileObject } from "../contract/file.ts";
import { actionButton } from "./batch-actions.ts";
import { uploadField, uploadState } from "./fields.ts";
import { formatBytes, time } from "./format.ts";
import { type Html, html, untrusted } from "./html.ts";
import { pageLinks, pageParams } from "./list-pages.ts";
import { type Asked, type ListOf, type Page, type Part, readFor } from "./page.ts";

const ROWS = 25;

export const filesPage: Page = {
  path: "/files",
  pollMs: 2_000,
  scripts: ["files.js"],
  async view(asked) {
    const params = pageParams(asked, ROWS);
    const answer = await readFor<ListOf<FileObject>>(asked, `/v1/files?${params}&order=desc`);
    if (!answer.ok) return answer;
    const rows = answer.value.data.map(
      (file): Part => ({ id: `row-${file.id}`, html: row(asked, file) }),
    );
    const list = {
      id: "files",
      html: html`<section id="files">${rows.length === 0 ? empty(asked) : table(rows)}${pageLinks(asked, { path: "files", shown: answer.value })}</section>`,
      pieces: rows,
    };
    return { ok: true, value: { title: "Files", parts: [heading(asked), list], isOver: false } };
  },
};

/**
 * Stands outside of what changes, so that an update disturbs no upload. Without `autocomplete="off"` a browser shows the file of an
 * upload that was left as chosen on the way back, and choosing it again would be no change.
 */
const heading = ({ caller }: Asked): Part => ({
  id: "heading",
  html: html`<div id="heading"><div class="head"><h1>Files</h1></div>${
    caller.scopes.includes("write")
      ? html`<form id="upload" class="card drop" autocomplete="off">${uploadField()}
${uploadState}</form>`
      : ""
  }
<dialog id="preview" aria-labelledby="preview-title" class="broad"><form method="dialog"><h2 id="preview-title"></h2><pre id="preview-text" tabindex="0"></pre><div class="buttons"><button class="plain" autofocus>Close</button></div></form></dialog></div>`,
});

/** The last file of a later page may have been deleted. */
const empty = ({ query }: Asked): Html =>
  query.has("after")
    ? html`<div class="empty"><h2>No older files</h2></div>`
    : html`<div class="empty"><h2>No files yet</h2><p>Input files and results appear here.</p></div>`;

const table = (
  rows: readonly Part[],
): Html => html`<div class="scroll" tabindex="0" role="region" aria-label="List of files"><table>
<thead><tr><th scope="col">File</th><th scope="col" class="middle">Purpose</th><th scope="col" class="number">Size</th><th scope="col" class="wide">Created</th><th scope="col" class="wide">Expires</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
<tbody>${rows.map((part) => part.html)}</tbody>
</table></div>`;

function row({ root, caller }: Asked, file: FileObject): Html {
  const { id, filename, purpose, bytes } = file;
  return html`<tr id="row-${id}">
<th scope="row"><span class="name">${untrusted(filename, 120)}</span><span class="dim under id">${id}</span></th>
<td class="middle">${purpose.replace("_", " ")}</td>
<td class="number">${formatBytes(bytes)}</td>
<td class="wide">${time(file.created_at, "relative")}</td>
<td class="wide">${file.expires_at === null ? html`<span class="dim">never</span>` : time(file.expires_at, "relative")}</td>
<td><div class="actions end">${contentActions(root, file)}${caller.scopes.includes("write") ? changes(root, file) : ""}</div></td>
</tr>`;
}

const contentActions = (root: string, { id, purpose }: FileObject): Html | string =>
  DOWNLOADABLE_PURPOSES.includes(purpose)
    ? html`<button type="button" class="quiet" data-preview="${id}">First lines</button><a class="button quiet" href="${root}web/v1/files/${id}/content" download>Download</a>`
    : "";

const changes = (root: string, { id, purpose }: FileObject): Html =>
  html`${purpose === "batch" ? html`<a class="button quiet" href="${root}new?file=${id}">New batch</a>` : ""}${actionButton(
    {
      label: "Delete",
      method: "DELETE",
      path: `files/${id}`,
      tone: "quiet",
      ask: {
        title: "Delete this file?",
        detail: `${id} cannot be brought back. Batches that read it and are not validated yet fail.`,
      },
    },
  )}`;
