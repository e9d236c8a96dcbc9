/** Reads the chunks of a batch with their segments: all of them, or those from a line on. */
import type { Batch, BatchId } from "../../batch/batch.ts";
import type { Segment } from "../chunks.ts";
import type { ChunkJournal, JournalPage, JournalPart, JournalStart } from "../finalizing.ts";
import { chunkFromRow, segmentFromRow } from "../rows.ts";
import { holdsAnswers, holdsFailures } from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { and, eq, type SQL, sql } from "./drizzle.ts";
import { arrayOf } from "./leases.ts";
import { chunks, segments } from "./schema.ts";

/** Chunks whose segments are read at a time: a slow upstream makes a segment of each line. */
const JOURNAL_PAGE = 64;

/**
 * Chunks of a sample have the first numbers and as many lines as the sample at most. The numbers of the others follow the
 * order of their first lines, so the place of a line is found by halves. The index leads from each model to the next.
 */
const start = (batchId: BatchId, sampleLines: number, line: number): SQL => sql`
  with recursive
  sampled(number, line_count) as (
    select 0, 0::bigint
    union all
    select sampled.number + 1, sampled.line_count + chunks.line_count
    from sampled join chunks on chunks.batch_id = ${batchId} and chunks.number = sampled.number
    where sampled.line_count < ${sampleLines}::bigint),
  bounds(first) as (select max(number) from sampled),
  place(low, high) as (
    select first - 1, (select max(number) + 1 from chunks where batch_id = ${batchId}) from bounds
    union all
    select
      case when (extents -> 0 ->> 'firstLine')::bigint <= ${line}::bigint then number else low end,
      case when (extents -> 0 ->> 'firstLine')::bigint <= ${line}::bigint then high else number end
    from place join chunks on batch_id = ${batchId} and number = (low + high) / 2
    where high - low > 1),
  models(model) as (
    select (select min(model) from chunks where batch_id = ${batchId})
    union all
    select (select min(chunks.model) from chunks where batch_id = ${batchId} and chunks.model > models.model)
    from models where model is not null)
  select low as last, (
    select coalesce(json_agg(number order by number), '[]') from (
      select number from sampled where number < first
      union all
      select (
        select max(number) from chunks
        where batch_id = ${batchId} and model = models.model and number between first and low)
      from models where model is not null) as begun
    where number is not null) as numbers
  from place, bounds where high - low <= 1`;

/** Chooses the segments of a part. */
const HOLDS: Readonly<Record<JournalPart, SQL>> = {
  all: sql`true`,
  completed: holdsAnswers,
  failed: holdsFailures,
};

/** Goes through an index from each chunk that has such a segment to the next. */
const written = (batchId: BatchId, { after, limit, part }: JournalPage): SQL => sql`
  with recursive written(number, count) as (
    select min(chunk_number), 1 from segments
    where batch_id = ${batchId} and chunk_number > ${after}::integer and ${HOLDS[part]}
    union all
    select (
      select min(chunk_number) from segments
      where batch_id = ${batchId} and chunk_number > written.number and ${HOLDS[part]}), count + 1
    from written where number is not null and count < ${limit}::integer)
  select number from written where number is not null`;

const next = (batchId: BatchId, { after, limit }: JournalPage): SQL => sql`
  select number from chunks
  where batch_id = ${batchId} and number > ${after}::integer
  order by number limit ${limit}::integer`;

export class PostgresJournals {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  listChunkJournals(batchId: BatchId): Promise<ChunkJournal[]> {
    return this.#db.read(async (db) => {
      const journals: ChunkJournal[] = [];
      for (;;) {
        // The numbers are positions in the batch, from 0.
        const numbers = Array.from({ length: JOURNAL_PAGE }, (_, i) => journals.length + i);
        const page = await journalsOf(db, batchId, { numbers, part: "all" });
        journals.push(...page);
        if (page.length < JOURNAL_PAGE) return journals;
      }
    });
  }

  findJournalStart(
    { id, sample }: Pick<Batch, "id" | "sample">,
    { line, part }: { readonly line: number; readonly part: JournalPart },
  ): Promise<JournalStart> {
    return this.#db.read(async (db) => {
      const { rows } = await db.execute<{ last: number; numbers: number[] }>(
        start(id, sample ?? 0, line),
      );
      const [found] = rows;
      if (found === undefined) return { journals: [], last: -1 };
      const { numbers, last } = found;
      return { journals: await journalsOf(db, id, { numbers, part }), last };
    });
  }

  listJournalPage(batchId: BatchId, page: JournalPage): Promise<ChunkJournal[]> {
    return this.#db.read(async (db) => {
      const list = page.part === "all" ? next : written;
      const { rows } = await db.execute<{ number: number }>(list(batchId, page));
      const numbers = rows.map(({ number }) => number);
      return journalsOf(db, batchId, { numbers, part: page.part });
    });
  }
}

/** Reads page by page: a batch may have 2,000 models, and their rows in one answer would block the event loop. */
async function journalsOf(
  db: Db,
  batchId: BatchId,
  { numbers, part }: { readonly numbers: readonly number[]; readonly part: JournalPart },
): Promise<ChunkJournal[]> {
  const journals: ChunkJournal[] = [];
  for (let from = 0; from < numbers.length; from += JOURNAL_PAGE) {
    const page = numbers.slice(from, from + JOURNAL_PAGE);
    journals.push(...(await pageOf(db, batchId, { numbers: page, part })));
  }
  return journals;
}

async function pageOf(
  db: Db,
  batchId: BatchId,
  { numbers, part }: { readonly numbers: readonly number[]; readonly part: JournalPart },
): Promise<ChunkJournal[]> {
  const wanted = arrayOf(numbers, "bigint");
  const found = await db
    .select()
    .from(chunks)
    .where(and(eq(chunks.batchId, batchId), sql`number = any(${wanted})`))
    .orderBy(chunks.number);
  const rows = await db
    .select()
    .from(segments)
    .where(and(eq(segments.batchId, batchId), sql`chunk_number = any(${wanted})`, HOLDS[part]))
    .orderBy(segments.chunkNumber, segments.sequence);
  const byChunk = Map.groupBy(rows, (row) => row.chunkNumber);
  const segmentsOf = (number: number): Segment[] => (byChunk.get(number) ?? []).map(segmentFromRow);
  return found.map((row) => ({ chunk: chunkFromRow(row), segments: segmentsOf(row.number) }));
}
