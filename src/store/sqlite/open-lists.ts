/**
 * What is open: the batches, and the chunks that can be claimed. The scheduler and the forecast read both
 * lists about once a second, and one client may have 30,000 open batches.
 *
 * A list is read page by page, each in a turn of the event loop of its own: one turn for the whole would take 400 ms.
 * A page is bounded by batches and by their lines, which bound the chunks. For each batch and model, the list of
 * claimable chunks reads a handful of index entries, however many chunks there are. The remaining work is summed up
 * from the index alone, in 0.3 ms for 1,000 chunks.
 *
 * No statement may fall back to a scan of every row: `indexed by` makes SQLite refuse it instead.
 */
import { setImmediate as nextTurn } from "node:timers/promises";
import type { BatchId } from "../../batch/batch.ts";
import type { BatchStatus } from "../../contract/batch.ts";
import { timeForMore } from "../../resources/time-slice.ts";
import { type OpenBatch, type OpenWork, type OpenWorkRow, openWorkIn } from "../batches.ts";
import type { RunnableChunks } from "../chunks.ts";
import {
  claimableChunks,
  hasStarted,
  isEnding,
  isNotPaused,
  isOpenChunk,
  linesToSend,
  mayExpire,
} from "./conditions.ts";
import type { Db, Now } from "./database.ts";
import { placeholder, type SQL, sql } from "./drizzle.ts";
import { isFree } from "./leases.ts";

const PAGE_BATCHES = 200;
/** The limit equals 2,000 chunks of 256 lines. */
const PAGE_LINES = 512_000;
/** One statement counts so many batches: some 3 ms. */
const COUNTED_BATCHES = 2_000;

/** A place among the open batches, which are ordered by their deadlines. */
interface Position {
  readonly deadlineAtMs: number;
  readonly sequence: number;
}

interface Bounds {
  readonly afterDeadlineAtMs: number;
  readonly afterSequence: number;
  readonly lastDeadlineAtMs: number;
  readonly lastSequence: number;
}

const START: Position = { deadlineAtMs: -1, sequence: 0 };
const END: Position = {
  deadlineAtMs: Number.MAX_SAFE_INTEGER,
  sequence: Number.MAX_SAFE_INTEGER,
};

const boundsAfter = ({ deadlineAtMs, sequence }: Position) => ({
  afterDeadlineAtMs: deadlineAtMs,
  afterSequence: sequence,
});
const boundsTo = ({ deadlineAtMs, sequence }: Position) => ({
  lastDeadlineAtMs: deadlineAtMs,
  lastSequence: sequence,
});

const POSITION = sql.raw("(batches.expires_at_ms, batches.sequence)");
const isAfter = sql`${mayExpire} and ${POSITION} >
  (${placeholder("afterDeadlineAtMs")}, ${placeholder("afterSequence")})`;
const isOnPage = sql`${isAfter} and ${POSITION} <=
  (${placeholder("lastDeadlineAtMs")}, ${placeholder("lastSequence")})`;
const OPEN_BATCHES = sql.raw("batches indexed by batches_that_may_expire");

/** The last batch of a full page. */
const pageEnd = sql`
  select expires_at_ms, sequence from (
    select
      expires_at_ms, sequence, row_number() over position as number,
      sum(total_count) over position as line_count
    from (
      select expires_at_ms, sequence, total_count from ${OPEN_BATCHES} where ${isAfter}
      order by expires_at_ms, sequence limit ${sql.raw(String(PAGE_BATCHES))})
    window position as (order by expires_at_ms, sequence))
  where number = ${sql.raw(String(PAGE_BATCHES))} or line_count >= ${sql.raw(String(PAGE_LINES))}
  order by number limit 1`;

/** Finds the first chunk of `model` in `batchId` without a holder. While a sample runs, no other chunk is free. */
export const firstFree = (batchId: SQL, model: SQL): SQL => sql`(
  select sequence from chunks indexed by chunks_open_by_batch
  where batch_id = ${batchId} and model = ${model} and ${isOpenChunk} and ${isFree} and number < (
    select ${claimableChunks} from batches where id = ${batchId})
  order by number limit 1)`;

/** The statement goes through the index from each model of each batch to the next (a loose index scan). */
const runnable = sql`
  with recursive open(batch_id, model) as (
    select id, (
      select min(model) from chunks indexed by chunks_open_by_batch
      where batch_id = batches.id and ${isOpenChunk})
    from ${OPEN_BATCHES} where ${isOnPage} and ${isNotPaused} and ${hasStarted}
    union all
    select batch_id, (
      select min(chunks.model) from chunks indexed by chunks_open_by_batch
      where chunks.batch_id = open.batch_id and ${isOpenChunk} and chunks.model > open.model)
    from open where model is not null)
  select
    batches.id as batch_id, project, priority, created_at_ms, expires_at_ms,
    ${linesToSend} as remaining, chunks.model as model, line_count
  from open
  join chunks on chunks.sequence = ${firstFree(sql`open.batch_id`, sql`open.model`)}
  join batches on batches.id = open.batch_id`;

const openBatches = sql`
  select
    id, project, priority, created_at_ms, expires_at_ms,
    ${hasStarted} as has_started,
    ${linesToSend} as remaining
  from ${OPEN_BATCHES} where ${isOnPage} and ${isNotPaused} order by expires_at_ms, sequence`;

const openWork = sql`
  select batch_id, model, sum(line_count) as line_count, count(*) filter (where not ${isFree}) as held_count
  from chunks indexed by chunks_open_by_batch
  where batch_id in (select id from ${OPEN_BATCHES} where ${isOnPage} and ${isNotPaused} and ${hasStarted})
    and ${isOpenChunk}
  group by batch_id, model`;

const COUNTED_END = sql.raw(`limit 1 offset ${COUNTED_BATCHES - 1}`);
const countedEnd = sql`
  select expires_at_ms, sequence from ${OPEN_BATCHES} where ${isAfter}
  order by expires_at_ms, sequence ${COUNTED_END}`;
const ENDING_BATCHES = sql.raw("batches indexed by batches_ending");
const isAfterEnding = sql`${isEnding} and sequence > ${placeholder("afterSequence")}`;
const countedEndingEnd = sql`
  select sequence from ${ENDING_BATCHES} where ${isAfterEnding} order by sequence ${COUNTED_END}`;

const COUNTED = { status: sql<BatchStatus>`status`, batchCount: sql<number>`count(*)` };

/** Every open batch may expire, or is about to end. */
const prepareCounts = (db: Db) => ({
  openEnd: db
    .select({ deadlineAtMs: sql<number>`expires_at_ms`, sequence: sql<number>`sequence` })
    .from(sql`(${countedEnd})`)
    .prepare(),
  open: db
    .select({
      ...COUNTED,
      lineCount: sql<number>`sum(iif(${isNotPaused}, ${linesToSend}, 0))`,
      firstExpiresAtMs: sql<number | null>`min(expires_at_ms)`,
    })
    .from(OPEN_BATCHES)
    .where(isOnPage)
    .groupBy(sql`status`)
    .prepare(),
  endingEnd: db
    .select({ sequence: sql<number>`sequence` })
    .from(sql`(${countedEndingEnd})`)
    .prepare(),
  ending: db
    .select({
      ...COUNTED,
      lineCount: sql<number>`sum(iif(stop_reason is null and ${isNotPaused}, ${linesToSend}, 0))`,
      firstExpiresAtMs: sql<null>`null`,
    })
    .from(ENDING_BATCHES)
    .where(sql`${isAfterEnding} and sequence <= ${placeholder("lastSequence")}`)
    .groupBy(sql`status`)
    .prepare(),
});

const prepareStatements = (db: Db) => ({
  pageEnd: db
    .select({ deadlineAtMs: sql<number>`expires_at_ms`, sequence: sql<number>`sequence` })
    .from(sql`(${pageEnd})`)
    .prepare(),
  runnable: db
    .select({
      batchId: sql<BatchId>`batch_id`,
      project: sql<string>`project`,
      priority: sql<number>`priority`,
      createdAtMs: sql<number>`created_at_ms`,
      deadlineAtMs: sql<number>`expires_at_ms`,
      model: sql<string>`model`,
      nextLineCount: sql<number>`line_count`,
      remainingLineCount: sql<number>`remaining`,
    })
    .from(sql`(${runnable})`)
    .prepare(),
  openBatches: db
    .select({
      batchId: sql<BatchId>`id`,
      project: sql<string>`project`,
      priority: sql<number>`priority`,
      createdAtMs: sql<number>`created_at_ms`,
      deadlineAtMs: sql<number>`expires_at_ms`,
      isValidated: sql<number>`has_started`,
      remainingLineCount: sql<number>`remaining`,
    })
    .from(sql`(${openBatches})`)
    .prepare(),
  openWork: db
    .select({
      batchId: sql<BatchId>`batch_id`,
      model: sql<string>`model`,
      lineCount: sql<number>`line_count`,
      heldCount: sql<number>`held_count`,
    })
    .from(sql`(${openWork})`)
    .prepare(),
});

export class SqliteOpenLists {
  readonly #now: Now;
  readonly #statements: ReturnType<typeof prepareStatements>;
  readonly #counts: ReturnType<typeof prepareCounts>;

  constructor(db: Db, now: Now) {
    this.#now = now;
    this.#statements = prepareStatements(db);
    this.#counts = prepareCounts(db);
  }

  /** A batch that moves meanwhile may be counted twice, or not at all. */
  async countOpenWork(): Promise<OpenWork> {
    const { open, openEnd, ending, endingEnd } = this.#counts;
    const rows: OpenWorkRow[] = [];
    for (let after: Position | undefined = START; after !== undefined; ) {
      await timeForMore();
      const from = boundsAfter(after);
      const end: Position | undefined = openEnd.get(from);
      rows.push(...open.all({ ...from, ...boundsTo(end ?? END) }));
      after = end;
    }
    for (let afterSequence: number | undefined = 0; afterSequence !== undefined; ) {
      await timeForMore();
      const end: number | undefined = endingEnd.get({ afterSequence })?.sequence;
      rows.push(...ending.all({ afterSequence, lastSequence: end ?? END.sequence }));
      afterSequence = end;
    }
    return openWorkIn(rows);
  }

  async listRunnable(): Promise<RunnableChunks[]> {
    const nowMs = this.#now();
    const { runnable } = this.#statements;
    // The list begins with the batches whose windows are not over.
    const start = { ...END, deadlineAtMs: nowMs };
    return this.#gather(start, (bounds) => runnable.all({ ...bounds, nowMs }));
  }

  async listOpenBatches(): Promise<OpenBatch[]> {
    const nowMs = this.#now();
    return this.#gather(START, (bounds) => this.#openBatches({ ...bounds, nowMs }));
  }

  #openBatches(bounds: Bounds & { readonly nowMs: number }): OpenBatch[] {
    const rows = this.#statements.openBatches.all({ ...bounds });
    const work = Map.groupBy(
      this.#statements.openWork.all({ ...bounds }),
      ({ batchId }) => batchId,
    );
    return rows.map(({ isValidated, ...batch }) => {
      const ofBatch = work.get(batch.batchId) ?? [];
      return {
        ...batch,
        isValidated: isValidated === 1,
        heldCount: ofBatch.reduce((sum, { heldCount }) => sum + heldCount, 0),
        // A server takes all leases back when it starts.
        lostCount: 0,
        work: ofBatch.map(({ model, lineCount }) => ({ model, lineCount })),
      };
    });
  }

  /** Collects the rows that `read` finds on every page after `start`. */
  async #gather<T>(start: Position, read: (bounds: Bounds) => readonly T[]): Promise<T[]> {
    const gathered: T[] = [];
    let after = start;
    for (;;) {
      const from = boundsAfter(after);
      const end = this.#statements.pageEnd.get(from);
      for (const each of read({ ...from, ...boundsTo(end ?? END) })) gathered.push(each);
      if (end === undefined) return gathered;
      after = end;
      await nextTurn();
    }
  }
}
