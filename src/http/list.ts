/**
 * Writes one page of a list. A page is bounded in bytes as well as in objects, because a hundred batches may have
 * megabytes of metadata. A truncated page has `has_more`, so clients continue from its last object. The rows are read a
 * few at a time and written in slices, so that other requests are served in between, however many lists are asked for at once.
 */
import { SlicedWork, timeForMore } from "../resources/time-slice.ts";
import type { Page } from "../store/page.ts";
import type { AppContext } from "./context.ts";
import { type CountBytes, countedAnswer } from "./counted-answer.ts";
import { answerJsonText, toAsciiJson } from "./json.ts";

/** The longest page. 10,000 files with ordinary names fit into it (2.6 MB). */
export const PAGE_MAX_BYTES = 4 * 1024 * 1024;
const ROWS_PER_READ = 20;

interface ListQuery {
  readonly limit: number;
  readonly after: string | null;
}

interface List<T, Query extends ListQuery> {
  /** Returns one page; rejects when `after` names no object. */
  readonly read: (query: Query) => Promise<Page<T>>;
  readonly present: (item: T) => { readonly id: string };
}

export async function answerPage<T extends { readonly id: string }, Query extends ListQuery>(
  c: AppContext,
  query: Query,
  list: List<T, Query>,
): Promise<Response> {
  const { ids, items, hasMore } = await countedAnswer(c, (count) => gather(query, list, count));
  const [firstId, lastId] = [ids.at(0) ?? null, ids.at(-1) ?? null].map((id) => toAsciiJson(id));
  return answerJsonText(
    c,
    `{"object":"list","data":[${items.join(",")}],"first_id":${firstId},"last_id":${lastId},"has_more":${hasMore}}`,
  );
}

async function gather<T extends { readonly id: string }, Query extends ListQuery>(
  query: Query,
  { read, present }: List<T, Query>,
  count: CountBytes,
) {
  const ids: string[] = [];
  const items: string[] = [];
  const work = new SlicedWork();
  let bytes = 0;
  for (;;) {
    await timeForMore();
    const limit = Math.min(ROWS_PER_READ, query.limit - items.length);
    const after = ids.at(-1) ?? query.after;
    const page = await read({ ...query, limit, after });
    for (const item of page.data) {
      const json = toAsciiJson(present(item));
      bytes += json.length;
      if (bytes > PAGE_MAX_BYTES && items.length > 0) return { ids, items, hasMore: true };
      ids.push(item.id);
      items.push(json);
      const free = count(json.length);
      if (free !== null) await free;
      const pause = work.done(json.length);
      if (pause !== null) await pause;
    }
    if (!page.hasMore || items.length >= query.limit) return { ids, items, hasMore: page.hasMore };
  }
}
