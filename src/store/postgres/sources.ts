/** Batches whose input is made of lines of other batches. */
import type { Batch, BatchId, MergedFiles, StoredFile, UntrustedId } from "../../batch/batch.ts";
import { MAX_RETRIES_LISTED } from "../../contract/batch-extension.ts";
import type { Claim } from "../claim.ts";
import { batchToDerive } from "../claimed-rows.ts";
import type { BatchLease } from "../leases.ts";
import { ANY_TURN, claimInTurn } from "../project-turns.ts";
import { batchFromRow, derivedColumns, fileFromRow } from "../rows.ts";
import {
  type BatchPlace,
  type BatchToDerive,
  behind,
  type DerivedInput,
  type DerivingTurn,
  type MergedResults,
  type Retry,
  SOURCES_PAGE,
  type SourceStore,
  WAITING_PAGE,
} from "../sources.ts";
import {
  hasSource,
  isAwaitedNoMore,
  isListed,
  sourceHasEnded,
  waitsForInput,
} from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { and, eq, type SQL, sql } from "./drizzle.ts";
import { files } from "./file-schema.ts";
import { insertFile } from "./files.ts";
import { consumeIntent } from "./intents.ts";
import {
  arrayOf,
  batchClaimedBy,
  HIDDEN_FROM_OLDER,
  isFreeBatch,
  isHeldBatch,
  NO_LEASE,
} from "./leases.ts";
import { batches } from "./schema.ts";
import { isFile, isScopedBatch } from "./scope.ts";

/** A batch that is being derived still waits. */
const isAwaitedByNone = sql`not exists (
  select 1 from batches as waiting where waiting.source_batch_id = batches.id and ${waitsForInput})`;

type Source = BatchPlace & {
  /** The first free batch that waits for it. */
  readonly waiting: number | null;
};

type Waiting = BatchPlace & {
  readonly is_ready: boolean;
};

export class PostgresSources implements SourceStore {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  async claimBatchToDerive(
    claim: Claim,
    { isThorough, ...turn }: DerivingTurn = { ...ANY_TURN, isThorough: false },
  ): Promise<BatchToDerive | null> {
    const bid = this.#db.timed(claim);
    return claimInTurn(turn, {
      find: (project) => {
        const after = behind(project);
        return isThorough ? this.#findReady(bid.now, after) : this.#findAwaiting(bid.now, after);
      },
      claim: async ({ sequence }) => {
        const [row] = await this.#db.change((db) =>
          db
            .update(batches)
            .set(batchClaimedBy(bid))
            .where(and(eq(batches.sequence, sequence), waitsForInput, isFreeBatch(bid.now)))
            .returning(),
        );
        return row === undefined ? null : batchToDerive(row);
      },
    });
  }

  /** Finds the first batch that waits for one of the sources after a place. A source that none waits for loses its mark. */
  async #findAwaiting(now: SQL, after: BatchPlace): Promise<BatchPlace | null> {
    for (let place = after; ; ) {
      const { rows } = await this.#db.read((db) =>
        db.execute<Source>(sql`
          select project, sequence, (
            select sequence from batches
            where source_batch_id = source.id and project = source.project and ${waitsForInput}
              and ${isFreeBatch(now)}
            order by sequence limit 1) as waiting
          from batches as source
          where ${isAwaitedNoMore} and (project, sequence) > (${place.project}, ${place.sequence})
          order by project, sequence limit ${SOURCES_PAGE}`),
      );
      for (const { project, waiting } of rows) {
        if (waiting !== null) return { project, sequence: Number(waiting) };
      }
      if (rows.length > 0) await this.#unmark(rows);
      const last = rows.at(-1);
      if (last === undefined || rows.length < SOURCES_PAGE) return null;
      place = last;
    }
  }

  async #unmark(sources: readonly Source[]): Promise<void> {
    const sequences = arrayOf(
      sources.map(({ sequence }) => sequence),
      "bigint",
    );
    const isOneOfThem = sql`sequence = any(${sequences})`;
    await this.#db.change((db) =>
      db
        .update(batches)
        .set({ isAwaited: null })
        .where(and(isOneOfThem, isAwaitedNoMore, isAwaitedByNone)),
    );
  }

  /** Finds the first batch after a place whose source has ended, page by page. */
  async #findReady(now: SQL, after: BatchPlace): Promise<BatchPlace | null> {
    for (let place = after; ; ) {
      const { rows } = await this.#db.read((db) =>
        db.execute<Waiting>(sql`
          select project, sequence, ${sourceHasEnded} as is_ready from (
            select project, sequence, source_batch_id from batches
            where ${waitsForInput} and ${isFreeBatch(now)}
              and (project, sequence) > (${place.project}, ${place.sequence})
            order by project, sequence limit ${WAITING_PAGE}) as waiting
          order by project, sequence`),
      );
      const ready = rows.find((row) => row.is_ready);
      if (ready !== undefined) return { ...ready, sequence: Number(ready.sequence) };
      const last = rows.at(-1);
      if (last === undefined || rows.length < WAITING_PAGE) return null;
      place = last;
    }
  }

  publishInputIfLeased(
    lease: BatchLease,
    input: DerivedInput,
  ): Promise<"stored" | "lost" | "gone" | "revoked"> {
    const { file, merge, quotas } = input;
    return this.#db.transaction(async (db) => {
      const held = and(isHeldBatch(lease), waitsForInput);
      const [row] = await db.select().from(batches).where(held).for("update");
      if (row === undefined) return "lost";
      if (!(await holdSource(db, batchFromRow(row), merge))) return "gone";
      if (!(await consumeIntent(db, file.blobKey))) return "revoked";
      await insertFile(db, file, quotas);
      await db
        .update(batches)
        .set({
          ...derivedColumns(input),
          ...(row.isDeduplicated === true ? HIDDEN_FROM_OLDER : NO_LEASE),
        })
        .where(held);
      return "stored";
    });
  }

  findInput({ project, inputFileId }: Batch): Promise<StoredFile | null> {
    return this.#db.read((db) => find(db, project, inputFileId));
  }

  findMergedResults({ project, source }: Batch): Promise<MergedResults> {
    return this.#db.read(async (db) => ({
      output: await find(db, project, source?.merge?.outputFileId ?? null),
      error: await find(db, project, source?.merge?.errorFileId ?? null),
    }));
  }

  async listRetries(sourceIds: readonly BatchId[]): Promise<Retry[]> {
    if (sourceIds.length === 0) return [];
    const { rows } = await this.#db.read((db) =>
      db.execute<{ source_id: BatchId; id: BatchId }>(sql`
        select wanted.source_id, retries.id
        from unnest(${arrayOf(sourceIds, "text")}) with ordinality as wanted(source_id, place)
        cross join lateral (
          select id, sequence from batches
          where source_batch_id = wanted.source_id and ${hasSource} and ${isListed}
          order by sequence desc limit ${MAX_RETRIES_LISTED}) as retries
        order by wanted.place, retries.sequence desc`),
    );
    return rows.map(({ source_id, id }) => ({ sourceId: source_id, batchId: id }));
  }
}

/** Finds a file that may be deleted. */
async function find(
  db: Db,
  project: string,
  id: UntrustedId<"file"> | null,
): Promise<StoredFile | null> {
  if (id === null) return null;
  const [row] = await db.select().from(files).where(isFile({ project, id }));
  return row === undefined ? null : fileFromRow(row);
}

/** Locks what the batch is made of, so that nothing of it is deleted before the commit. */
async function holdSource(
  db: Db,
  { project, source }: Batch,
  merge: MergedFiles | null,
): Promise<boolean> {
  if (source === null) return false;
  const isSource = isScopedBatch({ project, id: source.batchId });
  const found = await db.select({ id: batches.id }).from(batches).where(isSource).for("share");
  if (found.length === 0) return false;
  const { outputFileId = null, errorFileId = null } = merge ?? {};
  for (const id of [outputFileId, errorFileId]) {
    if (id === null) continue;
    const isPresent = and(isFile({ project, id }), isListed);
    const present = await db.select({ id: files.id }).from(files).where(isPresent).for("share");
    if (present.length === 0) return false;
  }
  return true;
}
