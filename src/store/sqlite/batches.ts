/** Batches as clients see them: created, read, listed. */

import type { Batch, ScopedId } from "../../batch/batch.ts";
import { timeForMore } from "../../resources/time-slice.ts";
import {
  type BatchChange,
  type BatchFilter,
  type BatchInsertion,
  type BatchQuery,
  isFindable,
  searchedText,
} from "../batches.ts";
import { type Page, pageOf } from "../page.ts";
import { assertWithin, boundsFiles, QuotaExceeded } from "../quotas.ts";
import { batchFromRow, rowFromBatch } from "../rows.ts";
import { boundsSpending } from "../spending.ts";
import { isListed, isOpenShown, mayExpire } from "./conditions.ts";
import { type Db, type Now, write } from "./database.ts";
import { insertWaitingDeliveries } from "./deliveries.ts";
import { and, desc, eq, gte, lt, placeholder, type SQL, sql } from "./drizzle.ts";
import { storedBy } from "./files.ts";
import { recordReceipt } from "./idempotency.ts";
import { batches } from "./schema.ts";
import { isScopedBatch } from "./scope.ts";
import { assertMayCreate } from "./spending.ts";
import { placeOf } from "./tombstones.ts";

/** A step of a filtered list takes some milliseconds, and 20 where each batch has as much metadata as it may. */
const STEP = 200;

const prepareStatements = (db: Db) => ({
  find: db.select().from(batches).where(isScopedBatch).prepare(),
  findStep: db
    .select({ sequence: batches.sequence })
    .from(batches)
    .where(
      and(
        eq(batches.project, placeholder("project")),
        lt(batches.sequence, placeholder("before")),
        isListed,
      ),
    )
    .orderBy(desc(batches.sequence))
    .limit(1)
    .offset(STEP - 1)
    .prepare(),
});

type Row = typeof batches.$inferSelect;

function conditionsOf(filter: BatchFilter): (SQL | undefined)[] {
  const { status, endpoint, model, createdAtOrAfterMs, metadata, search } = filter;
  if (!isFindable(filter)) return [sql`false`];
  return [
    status === null ? undefined : eq(batches.status, status),
    endpoint === null ? undefined : eq(batches.endpoint, endpoint),
    model === null ? undefined : eq(batches.model, model),
    createdAtOrAfterMs === null ? undefined : gte(batches.createdAtMs, createdAtOrAfterMs),
    ...Object.entries(metadata).map(
      ([key, value]) => sql`exists (
        select 1 from json_each(${batches.metadata}) as pair
        where pair.key = ${key} and pair.value = ${value})`,
    ),
    search === null ? undefined : hasText(searchedText(search)),
  ];
}

const hasText = (text: string): SQL => sql`(instr(${batches.id}, ${text}) > 0
    or exists (
      select 1 from json_each(${batches.metadata}) as pair where instr(lower(pair.value), ${text}) > 0)
    or exists (
      select 1 from files
      where files.id = ${batches.inputFileId} and files.project = ${batches.project}
        and files.deleted_at_ms is null and instr(lower(files.filename), ${text}) > 0))`;

export class SqliteBatches {
  readonly #db: Db;
  readonly #now: Now;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db, now: Now) {
    this.#db = db;
    this.#now = now;
    this.#statements = prepareStatements(db);
  }

  async insertBatch(batch: Batch, insertion: BatchInsertion = {}): Promise<void> {
    write(this.#db, () => this.#insertWithin(batch, insertion));
  }

  /** Takes part in a transaction. */
  #insertWithin(batch: Batch, { receipt, quotas, deliveries = [] }: BatchInsertion): void {
    this.#assertRoom(batch.project, quotas?.openBatches ?? null);
    if (boundsFiles(quotas)) assertWithin(storedBy(this.#db, batch.project), quotas);
    if (boundsSpending(quotas)) assertMayCreate(this.#db, batch.project, quotas, this.#now());
    this.#db.insert(batches).values(rowFromBatch(batch)).run();
    if (batch.isInputPending) this.#markSource(batch);
    insertWaitingDeliveries(this.#db, batch, deliveries);
    if (receipt !== undefined) recordReceipt(this.#db, receipt);
  }

  #markSource({ project, source }: Batch): void {
    this.#db
      .update(batches)
      .set({ isAwaited: true })
      .where(and(isScopedBatch, sql`is_awaited is not 1`))
      .prepare()
      .run({ project, id: source?.batchId });
  }

  /** Without this index, each new batch would read all that the project has ever had, or the rows of all that it has open. */
  #assertRoom(project: string, limit: number | null): void {
    if (limit === null) return;
    const open = this.#db.get<{ count: number }>(sql`
      select count(*) as count from batches indexed by batches_shown_open
      where project = ${project} and ${isOpenShown}`);
    if (open.count >= limit) throw new QuotaExceeded("open_batches", limit);
  }

  async updateBatchIfAllowed(
    { project, id }: ScopedId<"batch">,
    change: BatchChange,
  ): Promise<boolean> {
    if (Object.keys(change).length === 0) return (await this.findBatch({ project, id })) !== null;
    const needsLines = "budget" in change || "priority" in change;
    const { changes } = this.#db
      .update(batches)
      .set(change)
      .where(and(isScopedBatch, needsLines ? mayExpire : undefined))
      .prepare()
      .run({ project, id });
    return changes === 1;
  }

  async findBatch({ project, id }: ScopedId<"batch">): Promise<Batch | null> {
    const row = this.#statements.find.get({ project, id });
    return row === undefined ? null : batchFromRow(row);
  }

  async listBatches({ project, limit, after, filter }: BatchQuery): Promise<Page<Batch> | null> {
    let before = Number.MAX_SAFE_INTEGER;
    if (after !== null) {
      const place = placeOf(this.#db, "batches", { project, id: after });
      if (place === null) return null;
      before = place;
    }
    const ofProject = eq(batches.project, project);
    if (filter === undefined) {
      const rows = this.#select(and(ofProject, lt(batches.sequence, before)))
        .limit(limit + 1)
        .all();
      return pageOf(rows, limit, batchFromRow);
    }
    return this.#listFiltered(before, {
      project,
      limit,
      matches: and(ofProject, ...conditionsOf(filter)),
    });
  }

  async #listFiltered(
    start: number,
    { project, limit, matches }: { project: string; limit: number; matches: SQL | undefined },
  ): Promise<Page<Batch>> {
    const { sequence } = batches;
    const inStep = and(lt(sequence, placeholder("before")), gte(sequence, placeholder("last")));
    const readStep = this.#select(and(inStep, matches)).limit(placeholder("limit")).prepare();
    const found: Row[] = [];
    for (let before = start; ; ) {
      // Many lists may be asked for at once, so they share the time of a turn.
      await timeForMore();
      // The step is found in the index alone, so rows that do not match are read once.
      const last = this.#statements.findStep.get({ project, before })?.sequence;
      found.push(...readStep.all({ before, last: last ?? 0, limit: limit + 1 - found.length }));
      if (last === undefined || found.length > limit) return pageOf(found, limit, batchFromRow);
      before = last;
    }
  }

  #select(condition: SQL | undefined) {
    return this.#db
      .select()
      .from(batches)
      .where(and(condition, isListed))
      .orderBy(desc(batches.sequence));
  }
}
