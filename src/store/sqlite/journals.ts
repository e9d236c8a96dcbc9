/** Reads the chunks of a batch with their segments: all of them, or those from a line on. */
import { setImmediate as nextTurn } from "node:timers/promises";
import type { Batch, BatchId } from "../../batch/batch.ts";
import type { ChunkJournal, JournalPage, JournalPart, JournalStart } from "../finalizing.ts";
import { chunkFromRow } from "../rows.ts";
import { hasStarted, holdsAnswers, holdsFailures } from "./conditions.ts";
import type { Db } from "./database.ts";
import { and, eq, gt, placeholder, type SQL, sql } from "./drizzle.ts";
import { batches, chunks } from "./schema.ts";
import type { SqliteSegments } from "./segments.ts";

/** One turn of the event loop reads the segments of so many chunks: a slow upstream makes a segment of each line. */
const JOURNAL_PAGE = 8;

const isOfBatch = sql`chunks.batch_id = ${placeholder("batchId")}`;

/**
 * Chunks of a sample have the first numbers and as many lines as the sample at most. The numbers of the others follow the
 * order of their first lines, so the place of a line is found by halves. The index leads from each model to the next.
 */
const start = sql`
  with recursive
  sampled(number, line_count) as (
    select 0, 0
    union all
    select sampled.number + 1, sampled.line_count + chunks.line_count
    from sampled join chunks on ${isOfBatch} and chunks.number = sampled.number
    where sampled.line_count < ${placeholder("sampleLines")}),
  bounds(first) as (select max(number) from sampled),
  place(low, high) as (
    select first - 1, (select max(number) + 1 from chunks where ${isOfBatch}) from bounds
    union all
    select
      case when extents ->> '$[0].firstLine' <= ${placeholder("line")} then number else low end,
      case when extents ->> '$[0].firstLine' <= ${placeholder("line")} then high else number end
    from place join chunks on ${isOfBatch} and number = (low + high) / 2
    where high - low > 1),
  models(model) as (
    select (select min(model) from chunks indexed by chunks_by_model where ${isOfBatch})
    union all
    select (
      select min(chunks.model) from chunks indexed by chunks_by_model
      where ${isOfBatch} and chunks.model > models.model)
    from models where model is not null)
  select low as last, (
    select json_group_array(number) from (
      select number from sampled where number < first
      union all
      select (
        select max(number) from chunks indexed by chunks_by_model
        where ${isOfBatch} and model = models.model and number between first and low)
      from models where model is not null)
    where number is not null) as numbers
  from place, bounds where high - low <= 1`;

/** Goes through an index from each chunk that has such a segment to the next. */
const written = (index: string, holdsPart: SQL): SQL => sql`
  with recursive written(number, count) as (
    select min(chunk_number), 1 from segments indexed by ${sql.raw(index)}
    where batch_id = ${placeholder("batchId")} and chunk_number > ${placeholder("after")} and ${holdsPart}
    union all
    select (
      select min(chunk_number) from segments indexed by ${sql.raw(index)}
      where batch_id = ${placeholder("batchId")} and chunk_number > written.number and ${holdsPart}), count + 1
    from written where number is not null and count < ${placeholder("limit")})
  select number from written where number is not null order by number`;

const next = sql`
  select number from chunks
  where ${isOfBatch} and number > ${placeholder("after")} order by number limit ${placeholder("limit")}`;

const prepareNumbers = (db: Db, numbers: SQL) =>
  db.select({ number: sql<number>`number` }).from(sql`(${numbers})`).prepare();

const prepareStatements = (db: Db) => ({
  findStarted: db
    .select({ id: batches.id })
    .from(batches)
    .where(and(eq(batches.id, placeholder("batchId")), hasStarted))
    .prepare(),
  // Chunks are numbered by their place in the batch, from 0.
  list: db
    .select()
    .from(chunks)
    .where(and(eq(chunks.batchId, placeholder("batchId")), gt(chunks.number, placeholder("after"))))
    .orderBy(chunks.number)
    .limit(JOURNAL_PAGE)
    .prepare(),
  start: db
    .select({ last: sql<number>`last`, numbers: sql<string>`numbers` })
    .from(sql`(${start})`)
    .prepare(),
  pages: {
    all: prepareNumbers(db, next),
    completed: prepareNumbers(db, written("segments_by_chunk", holdsAnswers)),
    failed: prepareNumbers(db, written("segments_with_failures", holdsFailures)),
  },
  find: db
    .select()
    .from(chunks)
    .where(
      and(eq(chunks.batchId, placeholder("batchId")), eq(chunks.number, placeholder("number"))),
    )
    .prepare(),
});

export class SqliteJournals {
  readonly #segments: SqliteSegments;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db, segments: SqliteSegments) {
    this.#segments = segments;
    this.#statements = prepareStatements(db);
  }

  async listChunkJournals(batchId: BatchId): Promise<ChunkJournal[]> {
    const journals: ChunkJournal[] = [];
    if (this.#statements.findStarted.get({ batchId }) === undefined) return journals;
    for (;;) {
      const page = this.#statements.list.all({ batchId, after: journals.length - 1 });
      for (const row of page) {
        const ofChunk = this.#segments.list(batchId, row.number, "all");
        journals.push({ chunk: chunkFromRow(row), segments: ofChunk });
      }
      if (page.length < JOURNAL_PAGE) return journals;
      await nextTurn();
    }
  }

  async findJournalStart(
    { id, sample }: Pick<Batch, "id" | "sample">,
    { line, part }: { readonly line: number; readonly part: JournalPart },
  ): Promise<JournalStart> {
    const found = this.#statements.start.get({ batchId: id, sampleLines: sample, line });
    if (found === undefined) return { journals: [], last: -1 };
    const numbers = (JSON.parse(found.numbers) as number[]).sort((a, b) => a - b);
    return { journals: await this.#journalsOf(id, numbers, part), last: found.last };
  }

  async listJournalPage(
    batchId: BatchId,
    { after, limit, part }: JournalPage,
  ): Promise<ChunkJournal[]> {
    const rows = this.#statements.pages[part].all({ batchId, after, limit });
    const numbers = rows.map(({ number }) => number);
    return this.#journalsOf(batchId, numbers, part);
  }

  async #journalsOf(
    batchId: BatchId,
    numbers: readonly number[],
    part: JournalPart,
  ): Promise<ChunkJournal[]> {
    const journals: ChunkJournal[] = [];
    for (const [i, number] of numbers.entries()) {
      if (i > 0 && i % JOURNAL_PAGE === 0) await nextTurn();
      const row = this.#statements.find.get({ batchId, number });
      if (row === undefined) continue;
      const segments = this.#segments.list(batchId, number, part);
      journals.push({ chunk: chunkFromRow(row), segments });
    }
    return journals;
  }
}
