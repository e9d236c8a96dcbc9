/** The pages of a list: which one is asked for, and the ways on from it. */
import { type Html, html } from "./html.ts";
import type { Asked, ListOf } from "./page.ts";

/** Returns what to ask the API for, as parameters: `rows` objects behind the one that the address names. */
export function pageParams({ query }: Pick<Asked, "query">, rows: number): URLSearchParams {
  const params = new URLSearchParams({ limit: String(rows) });
  const after = query.get("after");
  if (after !== null) params.set("after", after);
  return params;
}

interface ListPage {
  /** The address of the list. */
  readonly path: string;
  readonly shown: Pick<ListOf<unknown>, "last_id" | "has_more">;
  readonly labels?: readonly [first: string, next: string];
}

/** Returns the links to the first page, which is the way back because a cursor knows no page before it, and to the next one. */
export const pageLinks = (
  { query }: Pick<Asked, "query">,
  { path, shown, labels: [first, next] = ["Newest", "Older"] }: ListPage,
): Html =>
  html`<nav class="pages" aria-label="Pages of the list">${query.has("after") ? html`<a href="${addressOf(path, query, null)}">${first}</a>` : ""}${shown.has_more ? html`<a href="${addressOf(path, query, shown.last_id)}" rel="next">${next}</a>` : ""}</nav>`;

/** The other choices in the address stay. */
function addressOf(path: string, query: URLSearchParams, after: string | null): string {
  const params = new URLSearchParams(query);
  params.delete("after");
  if (after !== null) params.set("after", after);
  return params.size === 0 ? path : `${path}?${params}`;
}
