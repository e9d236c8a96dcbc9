/**
 * Writes one page of a list. A page is bounded in bytes as well as in objects, because a hundred batches may have
 * megabytes of metadata. A truncated page has `has_more`, so clients continue from its last object. The rows are read a
 * few at a time and written in slices, so that other requests are served in between, however many lists are asked for at once.
 *
 * Rows are not counted in memory before they are written, and twenty of them may have a megabyte. So only some lists have rows
 * at the same time, and none keeps them while it waits for room: it reads them again. Those of clients that have left read nothing
 * more, because they would keep others waiting.
 */
import { clientGone } from "../errors.ts";
import { Semaphore } from "../resources/semaphore.ts";
import { SlicedWork, timeForMore } from "../resources/time-slice.ts";
import type { Page } from "../store/page.ts";
import type { AppContext } from "./context.ts";
import { type CountBytes, countedAnswer } from "./counted-answer.ts";
import { answerJsonText, toAsciiJson } from "./json.ts";

/** The longest page. 10,000 files with ordinary names fit into it (2.6 MB). */
export const PAGE_MAX_BYTES = 4 * 1024 * 1024;
const ROWS_PER_READ = 20;
/** More at the same time would end no sooner, because one thread writes them all. */
const reads = new Semaphore(16);

interface ListQuery {
  readonly limit: number;
  readonly after: string | null;
}

interface List<T, Query extends ListQuery> {
  /** Returns one page; rejects when `after` names no object. */
  readonly read: (query: Query) => Promise<Page<T>>;
  readonly present: (item: T) => { readonly id: string };
  /** Whether a read may look through all that there is. Searches have a limit of their own, and would keep others waiting. */
  readonly isSearch?: boolean;
}

export async function answerPage<T extends { readonly id: string }, Query extends ListQuery>(
  c: AppContext,
  query: Query,
  list: List<T, Query>,
): Promise<Response> {
  const { outgoing } = c.env;
  const isWanted = () => !outgoing.closed;
  const { ids, items, hasMore } = await countedAnswer(c, (count) =>
    gather({ ...list, query, count, isWanted }),
  );
  const [firstId, lastId] = [ids.at(0) ?? null, ids.at(-1) ?? null].map((id) => toAsciiJson(id));
  return answerJsonText(
    c,
    `{"object":"list","data":[${items.join(",")}],"first_id":${firstId},"last_id":${lastId},"has_more":${hasMore}}`,
  );
}

/** The page so far. */
interface Gathered {
  readonly ids: string[];
  readonly items: string[];
  bytes: number;
}

/** How the list goes on behind some rows. */
interface Next {
  /** Resolves once there is room for more; null when there is. */
  readonly free: Promise<void> | null;
  /** Whether there is more behind the page; null before its end. */
  readonly hasMore: boolean | null;
}

interface Gathering<T, Query extends ListQuery> extends List<T, Query> {
  readonly query: Query;
  readonly count: CountBytes;
  /** Whether the client still waits for the page. */
  readonly isWanted: () => boolean;
}

async function gather<T extends { readonly id: string }, Query extends ListQuery>(
  gathering: Gathering<T, Query>,
) {
  const gathered: Gathered = { ids: [], items: [], bytes: 0 };
  let rows = ROWS_PER_READ;
  for (;;) {
    const more = () => gatherMore(gathered, gathering, rows);
    const { free, hasMore } = gathering.isSearch ? await more() : await reads.run(more);
    if (free !== null) await free;
    if (hasMore !== null) return { ...gathered, hasMore };
    // There may be room for one more row and no other.
    rows = free === null ? ROWS_PER_READ : 1;
  }
}

async function gatherMore<T extends { readonly id: string }, Query extends ListQuery>(
  gathered: Gathered,
  { query, read, present, count, isWanted }: Gathering<T, Query>,
  maxRows: number,
): Promise<Next> {
  const { ids, items } = gathered;
  if (isWanted()) await timeForMore();
  if (!isWanted()) throw clientGone("its list was read");
  const work = new SlicedWork();
  const limit = Math.min(maxRows, query.limit - items.length);
  const page = await read({ ...query, limit, after: ids.at(-1) ?? query.after });
  for (const item of page.data) {
    const json = toAsciiJson(present(item));
    gathered.bytes += json.length;
    if (gathered.bytes > PAGE_MAX_BYTES && items.length > 0) return { free: null, hasMore: true };
    ids.push(item.id);
    items.push(json);
    const free = count(json.length);
    if (free !== null) {
      const isLast = item === page.data.at(-1);
      return { free, hasMore: isLast ? endOf(page, gathered, query) : null };
    }
    const pause = work.done(json.length);
    if (pause !== null) await pause;
  }
  return { free: null, hasMore: endOf(page, gathered, query) };
}

const endOf = (
  { hasMore }: Page<unknown>,
  { items }: Gathered,
  { limit }: ListQuery,
): boolean | null => (hasMore && items.length < limit ? null : hasMore);
