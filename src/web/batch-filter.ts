/** The filters of the list of batches: a form that makes them part of the address. */
import { BATCH_ENDPOINTS, BATCH_STATUSES } from "../contract/batch.ts";
import { type Html, html } from "./html.ts";
import type { Asked } from "./page.ts";
import { statusLabel } from "./status.ts";

const AGES: readonly (readonly [name: string, label: string, seconds: number])[] = [
  ["1h", "last hour", 3_600],
  ["24h", "last 24 hours", 86_400],
  ["7d", "last 7 days", 604_800],
  ["30d", "last 30 days", 2_592_000],
];

/** Returns the filters as parameters of the API. */
export function filterOf({ query, nowMs }: Asked): Record<string, string> {
  const filter: Record<string, string> = {};
  for (const name of ["status", "endpoint", "model", "search"]) {
    const value = query.get(name)?.trim();
    if (value !== undefined && value !== "") filter[name] = value;
  }
  const age = AGES.find(([name]) => name === query.get("age"));
  if (age !== undefined) filter["created_after"] = String(Math.floor(nowMs / 1000) - age[2]);
  const [key = "", ...value] = (query.get("metadata") ?? "").split("=");
  if (key.trim() !== "") filter[`metadata[${key.trim()}]`] = value.join("=").trim();
  return filter;
}

type Option = readonly [value: string, label: string];

export function filterForm({ query }: Asked): Html {
  const of = (name: string) => query.get(name) ?? "";
  // A browser that goes back would fill in what was chosen on a later page.
  return html`<form method="get" autocomplete="off" class="filters" role="search" aria-label="Filter batches">
<label>Search <input type="search" name="search" value="${of("search")}" placeholder="id or name" maxlength="512" autocomplete="off" spellcheck="false"></label>
${choice(
  "status",
  "Status",
  of("status"),
  BATCH_STATUSES.map((each) => [each, statusLabel(each)]),
)}
${choice(
  "endpoint",
  "Endpoint",
  of("endpoint"),
  BATCH_ENDPOINTS.map((each) => [each, each.replace("/v1/", "")]),
)}
${choice(
  "age",
  "Created",
  of("age"),
  AGES.map(([name, label]) => [name, label]),
)}
<label>Model <input name="model" value="${of("model")}" placeholder="exact name" autocomplete="off" spellcheck="false"></label>
<label>Metadata <input name="metadata" value="${of("metadata")}" placeholder="key=value" pattern="\\s*[^=\\s][^=]*=.*" title="A key, = and its value" autocomplete="off" spellcheck="false"></label>
<span class="buttons"><button>Filter</button>${query.size > 0 ? html`<a href="./">Clear</a>` : ""}</span>
</form>`;
}

const choice = (name: string, label: string, chosen: string, options: readonly Option[]): Html =>
  html`<label>${label} <select name="${name}"><option value="">any</option>${options.map(([value, text]) => html`<option value="${value}"${value === chosen ? html` selected` : ""}>${text}</option>`)}</select></label>`;
