/** Batches as clients see them: created, read, listed. */

import { setImmediate as nextTurn } from "node:timers/promises";
import type { Batch, ScopedId } from "../../batch/batch.ts";
import type { BatchStatus } from "../../contract/batch.ts";
import {
  type BatchChange,
  type BatchFilter,
  type BatchInsertion,
  type BatchQuery,
  FILTER_STEP,
  type OpenWork,
  openWorkIn,
  searchedText,
} from "../batches.ts";
import { type Page, pageOf } from "../page.ts";
import { QuotaExceeded } from "../quotas.ts";
import { batchFromRow, rowFromBatch } from "../rows.ts";
import { boundsSpending } from "../spending.ts";
import { isListed, isOpenBatch, linesToSend, mayExpire } from "./conditions.ts";
import { type Db, write } from "./database.ts";
import { insertWaitingDeliveries } from "./deliveries.ts";
import { and, desc, eq, gte, lt, placeholder, type SQL, sql } from "./drizzle.ts";
import type { SqliteIdempotency } from "./idempotency.ts";
import { batches } from "./schema.ts";
import { isScopedBatch } from "./scope.ts";
import { assertMayCreate } from "./spending.ts";
import { placeOf } from "./tombstones.ts";

const prepareStatements = (db: Db) => ({
  find: db.select().from(batches).where(isScopedBatch).prepare(),
  findStep: db
    .select({ sequence: batches.sequence })
    .from(batches)
    .where(
      and(eq(batches.project, placeholder("project")), lt(batches.sequence, placeholder("before"))),
    )
    .orderBy(desc(batches.sequence))
    .limit(1)
    .offset(FILTER_STEP - 1)
    .prepare(),
  // Any index of open batches spares a scan of the final ones, which may number a million.
  countOpenWork: db
    .select({
      status: sql<BatchStatus>`status`,
      batchCount: sql<number>`count(*)`,
      lineCount: sql<number>`sum(iif(stop_reason is null, ${linesToSend}, 0))`,
      firstExpiresAtMs: sql<number | null>`min(iif(${mayExpire}, expires_at_ms, null))`,
    })
    .from(sql`batches indexed by batches_open_by_input`)
    .where(isOpenBatch)
    .groupBy(sql`status`)
    .prepare(),
});

type Row = typeof batches.$inferSelect;

function conditionsOf({ status, endpoint, model, ...filter }: BatchFilter): (SQL | undefined)[] {
  const { createdAtOrAfterMs, metadata, search } = filter;
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

const hasText = (text: string | null): SQL =>
  text === null
    ? sql`false`
    : sql`(instr(${batches.id}, ${text}) > 0
        or exists (
          select 1 from json_each(${batches.metadata}) as pair where instr(lower(pair.value), ${text}) > 0)
        or exists (
          select 1 from files
          where files.id = ${batches.inputFileId} and files.project = ${batches.project}
            and files.deleted_at_ms is null and instr(lower(files.filename), ${text}) > 0))`;

interface Insertion extends BatchInsertion {
  readonly nowMs: number;
}

export class SqliteBatches {
  readonly #db: Db;
  readonly #idempotency: SqliteIdempotency;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db, idempotency: SqliteIdempotency) {
    this.#db = db;
    this.#idempotency = idempotency;
    this.#statements = prepareStatements(db);
  }

  insert(batch: Batch, insertion: Insertion): void {
    write(this.#db, () => this.insertWithin(batch, insertion));
  }

  /** Takes part in a transaction. */
  insertWithin(batch: Batch, { receipt, quotas, deliveries = [], nowMs }: Insertion): void {
    this.#assertRoom(batch.project, quotas?.openBatches ?? null);
    if (boundsSpending(quotas)) assertMayCreate(this.#db, batch.project, quotas, nowMs);
    this.#db.insert(batches).values(rowFromBatch(batch)).run();
    insertWaitingDeliveries(this.#db, batch, deliveries);
    if (receipt !== undefined) this.#idempotency.record(receipt);
  }

  /** Without this index, each new batch would read all that the project has ever had, or what all projects have open. */
  #assertRoom(project: string, limit: number | null): void {
    if (limit === null) return;
    const open = this.#db.get<{ count: number }>(sql`
      select count(*) as count from batches indexed by batches_open_by_project
      where project = ${project} and ${isOpenBatch} and ${isListed}`);
    if (open.count >= limit) throw new QuotaExceeded("open_batches", limit);
  }

  update({ project, id }: ScopedId<"batch">, change: BatchChange): boolean {
    if (Object.keys(change).length === 0) return this.find({ project, id }) !== null;
    const needsLines = "budget" in change || "priority" in change;
    const { changes } = this.#db
      .update(batches)
      .set(change)
      .where(and(isScopedBatch, needsLines ? mayExpire : undefined))
      .prepare()
      .run({ project, id });
    return changes === 1;
  }

  find({ project, id }: ScopedId<"batch">): Batch | null {
    const row = this.#statements.find.get({ project, id });
    return row === undefined ? null : batchFromRow(row);
  }

  async list({ project, limit, after, filter }: BatchQuery): Promise<Page<Batch> | null> {
    let before = Number.MAX_SAFE_INTEGER;
    if (after !== null) {
      const place = placeOf(this.#db, "batches", { project, id: after });
      if (place === null) return null;
      before = place;
    }
    const ofProject = eq(batches.project, project);
    if (filter === undefined) {
      const rows = this.#read(and(ofProject, lt(batches.sequence, before)), limit + 1);
      return pageOf(rows, limit, batchFromRow);
    }
    const found: Row[] = [];
    for (let last: number | undefined; ; await nextTurn()) {
      // The step is found in the index alone, so rows that do not match are read once.
      last = this.#statements.findStep.get({ project, before })?.sequence;
      const inStep = and(lt(batches.sequence, before), gte(batches.sequence, last ?? 0));
      const matches = and(ofProject, inStep, ...conditionsOf(filter));
      found.push(...this.#read(matches, limit + 1 - found.length));
      if (last === undefined || found.length > limit) return pageOf(found, limit, batchFromRow);
      before = last;
    }
  }

  #read(condition: SQL | undefined, limit: number): Row[] {
    return this.#db
      .select()
      .from(batches)
      .where(and(condition, isListed))
      .orderBy(desc(batches.sequence))
      .limit(limit)
      .all();
  }

  countOpenWork(): OpenWork {
    return openWorkIn(this.#statements.countOpenWork.all());
  }
}
