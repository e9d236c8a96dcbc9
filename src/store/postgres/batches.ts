/** Batches as clients see them: created, read, listed. */

import type { Batch, ScopedId } from "../../batch/batch.ts";
import {
  type BatchChange,
  type BatchFilter,
  type BatchInsertion,
  type BatchQuery,
  FILTER_STEP,
  isFindable,
  type OpenWork,
  openWorkIn,
  searchedText,
} from "../batches.ts";
import { type Page, pageOf } from "../page.ts";
import { assertWithin, boundsFiles, QuotaExceeded } from "../quotas.ts";
import { batchFromRow, rowFromBatch } from "../rows.ts";
import { boundsSpending } from "../spending.ts";
import {
  isListed,
  isNotPaused,
  isOpenBatch,
  isOpenShown,
  isSelected,
  linesToSend,
  mayExpire,
} from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { insertWaitingDeliveries } from "./deliveries.ts";
import { and, desc, eq, gte, lt, type SQL, sql } from "./drizzle.ts";
import { storedBy } from "./files.ts";
import { recordReceipt } from "./idempotency.ts";
import { HIDDEN_FROM_OLDER } from "./leases.ts";
import { sendNudge } from "./nudges.ts";
import { lockLists } from "./project-locks.ts";
import { batches } from "./schema.ts";
import { isScopedBatch } from "./scope.ts";
import { assertMayCreate } from "./spending.ts";
import { placeOf } from "./tombstones.ts";

async function assertRoom(db: Db, project: string, limit: number | null): Promise<void> {
  if (limit === null) return;
  const open = and(eq(batches.project, project), isOpenShown);
  if ((await db.$count(batches, open)) >= limit) throw new QuotaExceeded("open_batches", limit);
}

async function markSource(db: Db, { project, source }: Batch): Promise<void> {
  if (source === null) return;
  const isSource = isScopedBatch({ project, id: source.batchId });
  await db
    .update(batches)
    .set({ isAwaited: true })
    .where(and(isSource, sql`is_awaited is not true`));
}

type Row = typeof batches.$inferSelect;

const readBatches = (db: Db, condition: SQL | undefined, limit: number): Promise<Row[]> =>
  db
    .select()
    .from(batches)
    .where(and(condition, isListed))
    .orderBy(desc(batches.sequence))
    .limit(limit);

interface Step {
  readonly project: string;
  readonly before: number;
}

/**
 * Finds the batches of a list before a place, in an index alone. PostgreSQL would else read its way through all batches of
 * the database, where most of a project are deleted.
 */
const shownBefore = (db: Db, { project, before }: Step, limit: number) =>
  db
    .select({ sequence: batches.sequence })
    .from(batches)
    .where(and(eq(batches.project, project), lt(batches.sequence, before), isListed))
    .orderBy(desc(batches.sequence))
    .limit(limit);

/** Finds the last batch of a step; undefined in the last step. */
async function findStepEnd(db: Db, step: Step): Promise<number | undefined> {
  const [last] = await shownBefore(db, step, 1).offset(FILTER_STEP - 1);
  return last?.sequence;
}

function conditionsOf(filter: BatchFilter): (SQL | undefined)[] {
  const { status, endpoint, model, createdAtOrAfterMs, metadata, search } = filter;
  if (!isFindable(filter)) return [sql`false`];
  return [
    status === null ? undefined : eq(batches.status, status),
    endpoint === null ? undefined : eq(batches.endpoint, endpoint),
    model === null ? undefined : eq(batches.model, model),
    createdAtOrAfterMs === null ? undefined : gte(batches.createdAtMs, createdAtOrAfterMs),
    ...Object.entries(metadata).map(hasPair),
    search === null ? undefined : hasText(searchedText(search)),
  ];
}

/** The collation leaves all letters but A to Z as they are. `translate` would take ten times as long over long values. */
const folded = (text: SQL): SQL => sql`lower((${text}) collate "C")`;

/** They stand for an escaped backslash and for the beginning of an unreadable escape. JSON has neither of them unescaped. */
const [BACKSLASH, BEGINNING] = ["\u0001", "\u0002"];
const HALVES = [..."89abcdef"].map((digit) => [`\\ud${digit}`, BEGINNING] as const);

/**
 * PostgreSQL reads neither a NUL nor half a surrogate pair as text. One such value would fail each query over the list, so
 * characters that no filter has, U+10FF00 and up, take their places: SQLite finds no other one instead, either. Pairs of
 * surrogates are stored unescaped. A backslash that is itself escaped begins no such value. A regular expression would take 15
 * to 40 times as long over texts that are full of them.
 */
const READABLE_METADATA = sql.raw(
  [
    ["\\\\", BACKSLASH],
    ["\\u0000", `${BEGINNING}00`],
    ...HALVES,
    [BEGINNING, "\\udbff\\udf"],
    [BACKSLASH, "\\\\"],
  ].reduce((text, [from, to]) => `replace(${text}, '${from}', '${to}')`, "metadata::text"),
);

/** The name of the file is no `exists`, for which PostgreSQL would read all files in each step of the list. */
const hasText = (text: string): SQL => sql`(strpos(${batches.id}, ${text}) > 0
    or exists (
      select 1 from json_each_text(${READABLE_METADATA}::json) as pair where strpos(${folded(sql`pair.value`)}, ${text}) > 0)
    or (
      select strpos(${folded(sql`files.filename`)}, ${text}) > 0 from files
      where files.id = ${batches.inputFileId} and files.project = ${batches.project}
        and files.deleted_at_ms is null))`;

const hasPair = ([key, value]: [string, string]): SQL =>
  sql`${READABLE_METADATA}::json ->> ${key}::text = ${value}`;

export class PostgresBatches {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  async insertBatch(batch: Batch, insertion: BatchInsertion = {}): Promise<void> {
    const { project } = batch;
    // A client that is told of a failure asks again, and another batch would send all lines a second time.
    await this.#db.certainTransaction<unknown>(
      { kind: "lists", project },
      (db) => this.#insertWithin(db, batch, insertion),
      async (db) => {
        await lockLists(db, project);
        return (await db.$count(batches, isScopedBatch(batch))) === 1 ? batch.id : null;
      },
    );
  }

  async #insertWithin(
    db: Db,
    batch: Batch,
    { receipt, quotas, deliveries = [] }: BatchInsertion,
  ): Promise<void> {
    if (receipt !== undefined) await recordReceipt(db, receipt);
    await sendNudge(db, "batch_created");
    if (batch.isInputPending) await markSource(db, batch);
    await lockLists(db, batch.project);
    // No other batch of the project comes between, because its lists are locked.
    await assertRoom(db, batch.project, quotas?.openBatches ?? null);
    if (boundsFiles(quotas)) assertWithin(await storedBy(db, batch.project), quotas);
    if (boundsSpending(quotas)) await assertMayCreate(db, batch.project, quotas, this.#db.now());
    const isBeyondOlder = batch.isInputPending || batch.deduplicated !== null;
    const hidden = isBeyondOlder ? HIDDEN_FROM_OLDER : {};
    await db.insert(batches).values({ ...rowFromBatch(batch), ...hidden });
    await insertWaitingDeliveries(db, batch, deliveries);
  }

  updateBatchIfAllowed(batch: ScopedId<"batch">, change: BatchChange): Promise<boolean> {
    const needsLines = "budget" in change || "priority" in change;
    const isAllowed = and(isScopedBatch(batch), needsLines ? mayExpire : undefined);
    if (Object.keys(change).length === 0) {
      return this.#db.read(async (db) => (await db.$count(batches, isAllowed)) === 1);
    }
    const set = async (db: Db): Promise<boolean> =>
      (await db.update(batches).set(change).where(isAllowed)).rowCount === 1;
    if (!needsLines) return this.#db.change(set);
    return this.#db.transaction(async (db) => {
      if (!(await set(db))) return false;
      // Workers send the lines of a batch without a budget unchecked, so they have to begin anew.
      await sendNudge(db, "batch_stopping");
      return true;
    });
  }

  async findBatch(batch: ScopedId<"batch">): Promise<Batch | null> {
    const [row] = await this.#db.read((db) =>
      db.select().from(batches).where(isScopedBatch(batch)),
    );
    return row === undefined ? null : batchFromRow(row);
  }

  async listBatches({ project, limit, after, filter }: BatchQuery): Promise<Page<Batch> | null> {
    let before = Number.MAX_SAFE_INTEGER;
    if (after !== null) {
      const place = await this.#db.read((db) => placeOf(db, "batches", { project, id: after }));
      if (place === null) return null;
      before = place;
    }
    if (filter === undefined) {
      const rows = await this.#db.read((db) => {
        const next = shownBefore(db, { project, before }, limit + 1);
        return readBatches(db, isSelected(next), limit + 1);
      });
      return pageOf(rows, limit, batchFromRow);
    }
    const found: Row[] = [];
    for (;;) {
      const most = limit + 1 - found.length;
      const { rows, last } = await this.#readStep({ project, before }, filter, most);
      found.push(...rows);
      if (last === undefined || found.length > limit) return pageOf(found, limit, batchFromRow);
      before = last;
    }
  }

  /** A list with filters may have thousands of steps. Between two of them, its connection is free for others. */
  #readStep(step: Step, filter: BatchFilter, limit: number) {
    return this.#db.read(async (db) => {
      const last = await findStepEnd(db, step);
      const isShown = isSelected(shownBefore(db, step, FILTER_STEP));
      // Batches may have been deleted since, and the step goes further then.
      const isInStep = gte(batches.sequence, last ?? 0);
      const matches = and(isShown, isInStep, ...conditionsOf(filter));
      return { rows: await readBatches(db, matches, limit), last };
    });
  }

  async countOpenWork(): Promise<OpenWork> {
    const rows = await this.#db.read((db) =>
      db
        .select({
          status: batches.status,
          batchCount: sql`count(*)`.mapWith(Number),
          lineCount: sql`
            coalesce(sum(${linesToSend}) filter (where stop_reason is null and ${isNotPaused}), 0)
          `.mapWith(Number),
          firstExpiresAtMs: sql<
            number | null
          >`min(expires_at_ms) filter (where ${mayExpire})`.mapWith(batches.expiresAtMs),
        })
        .from(batches)
        .where(isOpenBatch)
        .groupBy(batches.status),
    );
    return openWorkIn(rows);
  }
}
