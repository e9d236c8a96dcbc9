/**
 * Lists the open batches, and the chunks that can be claimed. The scheduler and the forecast ask for both every few
 * seconds, and one client may have 30,000 open batches. A list is therefore read page by page, in the order of the
 * deadlines, and the event loop takes its turns in between. A page is one statement, which sees one moment of the
 * database. The list of claimable chunks reads a few index entries for each batch and model, however many chunks it has.
 */
import type { BatchId } from "../../batch/batch.ts";
import type { OpenBatch } from "../batches.ts";
import type { RunnableChunks } from "../chunks.ts";
import { claimableChunks, hasStarted, isOpenChunk, linesToSend, maySend } from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { type SQL, sql } from "./drizzle.ts";
import { isFree } from "./leases.ts";

const PAGE_BATCHES = 500;

/** A position among the open batches. */
interface Position {
  readonly deadlineAtMs: number;
  readonly sequence: number;
}

const START: Position = { deadlineAtMs: -1, sequence: 0 };

/** A row as the driver returns it: a `bigint` is a text. */
interface BatchRow {
  readonly sequence: string;
  readonly id: BatchId;
  readonly project: string;
  readonly priority: number;
  readonly created_at_ms: string;
  readonly expires_at_ms: string;
  readonly remaining: string;
}

interface RunnableRow extends BatchRow, Record<string, unknown> {
  /** The model; null in the row of a batch without a chunk that can be claimed. */
  readonly model: string | null;
  readonly line_count: string;
}

interface OpenRow extends BatchRow, Record<string, unknown> {
  readonly has_started: boolean;
  readonly held_count: string;
  readonly lost_count: string;
  readonly work: readonly { readonly model: string; readonly lineCount: number }[];
}

const batchesAfter = ({ deadlineAtMs, sequence }: Position, isChosen: SQL): SQL => sql`
  select
    sequence, id, project, priority, ${claimableChunks} as claimable_chunks, created_at_ms, expires_at_ms, ${hasStarted} as has_started,
    ${linesToSend} as remaining
  from batches
  where ${maySend} and ${isChosen}
    and (expires_at_ms, sequence) > (${deadlineAtMs}::bigint, ${sequence}::bigint)
  order by expires_at_ms, sequence limit ${PAGE_BATCHES}`;

const firstFree = (now: SQL, isWanted: SQL): SQL => sql`
  select model, line_count from chunks
  where batch_id = page.id and ${isOpenChunk} and ${isFree(now)} and ${isWanted}
    and number < page.claimable_chunks
  order by model, number limit 1`;

/** Goes through the index from the first free chunk of each model of a batch to the next (a loose index scan). */
const runnable = (after: Position, now: SQL): SQL => sql`
  select page.*, next.model, next.line_count
  from (${batchesAfter(after, sql`${hasStarted} and expires_at_ms > ${now}`)}) as page
  left join lateral (
    with recursive first(model, line_count) as (
      (${firstFree(now, sql`true`)})
      union all
      (select further.* from first
        cross join lateral (${firstFree(now, sql`chunks.model > first.model`)}) as further))
    select * from first
  ) as next on true
  order by page.expires_at_ms, page.sequence`;

/** Whether the holder of a chunk has renewed its place among the replicas. */
const isAlive = (now: SQL): SQL =>
  sql`lease_owner = any(array(select owner from replicas where expires_at_ms > ${now}))`;

const openBatches = (after: Position, now: SQL): SQL => sql`
  select
    page.*, coalesce(chunks.work, '[]') as work,
    coalesce(chunks.held_count, 0) as held_count, coalesce(chunks.lost_count, 0) as lost_count
  from (${batchesAfter(after, sql`true`)}) as page
  left join lateral (
    select
      sum(held_count) as held_count, sum(lost_count) as lost_count,
      json_agg(json_build_object('model', model, 'lineCount', line_count)) as work
    from (
      select model, sum(line_count) as line_count,
        count(*) filter (where not ${isFree(now)} and ${isAlive(now)}) as held_count,
        count(*) filter (where not ${isFree(now)} and not ${isAlive(now)}) as lost_count
      from chunks where batch_id = page.id and ${isOpenChunk} group by model) as of_model
  ) as chunks on true
  order by page.expires_at_ms, page.sequence`;

const positionOf = (row: BatchRow): Position => ({
  deadlineAtMs: Number(row.expires_at_ms),
  sequence: Number(row.sequence),
});

const batchOf = (row: BatchRow) => ({
  batchId: row.id,
  project: row.project,
  priority: row.priority,
  createdAtMs: Number(row.created_at_ms),
  deadlineAtMs: Number(row.expires_at_ms),
  remainingLineCount: Number(row.remaining),
});

export class PostgresOpenLists {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  async listRunnable(): Promise<RunnableChunks[]> {
    const now = this.#db.now();
    const rows = await this.#gather(async (db, after) => {
      return (await db.execute<RunnableRow>(runnable(after, now))).rows;
    });
    return rows.flatMap(({ model, line_count, ...batch }) =>
      model === null ? [] : [{ ...batchOf(batch), model, nextLineCount: Number(line_count) }],
    );
  }

  async listOpenBatches(): Promise<OpenBatch[]> {
    const now = this.#db.now();
    const rows = await this.#gather(async (db, after) => {
      return (await db.execute<OpenRow>(openBatches(after, now))).rows;
    });
    return rows.map((row) => ({
      ...batchOf(row),
      isValidated: row.has_started,
      heldCount: Number(row.held_count),
      lostCount: Number(row.lost_count),
      work: row.work,
    }));
  }

  /** Reads page after page. A page has all rows of its batches, and at least one of each. */
  #gather<Row extends BatchRow>(
    readAfter: (db: Db, after: Position) => Promise<readonly Row[]>,
  ): Promise<Row[]> {
    return this.#db.read(async (db) => {
      const gathered: Row[] = [];
      let after = START;
      for (;;) {
        const page = await readAfter(db, after);
        for (const row of page) gathered.push(row);
        const last = page.at(-1);
        if (last === undefined || countBatches(page) < PAGE_BATCHES) return gathered;
        after = positionOf(last);
      }
    });
  }
}

const countBatches = (rows: readonly BatchRow[]): number =>
  new Set(rows.map(({ sequence }) => sequence)).size;
