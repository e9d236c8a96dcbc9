/** Batches whose input is made of lines of other batches. */
import { setImmediate as nextTurn } from "node:timers/promises";
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
import { type Db, type Now, write } from "./database.ts";
import { and, desc, eq, placeholder, sql } from "./drizzle.ts";
import { files } from "./file-schema.ts";
import { insertFile } from "./files.ts";
import type { SqliteIntents } from "./intents.ts";
import { CLAIMED, claimValues, isFree, isHeldBatch, NO_LEASE } from "./leases.ts";
import { batches } from "./schema.ts";
import { isFile, isScopedBatch } from "./scope.ts";

/** A batch that is being derived still waits. */
const isAwaitedByNone = sql`not exists (
  select 1 from batches as waiting where waiting.source_batch_id = batches.id and ${waitsForInput})`;

interface Source extends BatchPlace {
  /** The first free batch that waits for it. */
  readonly waiting: number | null;
}

interface Waiting extends BatchPlace {
  readonly isReady: number;
}

const prepareStatements = (db: Db) => ({
  claim: db
    .update(batches)
    .set(CLAIMED)
    .where(and(eq(batches.sequence, placeholder("sequence")), waitsForInput, isFree))
    .returning()
    .prepare(),
  unmark: db
    .update(batches)
    .set({ isAwaited: null })
    .where(and(eq(batches.sequence, placeholder("sequence")), isAwaitedNoMore, isAwaitedByNone))
    .prepare(),
  // Every look at a batch asks for them.
  listRetries: db
    .select({ batchId: batches.id })
    .from(batches)
    .where(and(eq(batches.sourceBatchId, placeholder("sourceId")), hasSource, isListed))
    .orderBy(desc(batches.sequence))
    .limit(MAX_RETRIES_LISTED)
    .prepare(),
});

export class SqliteSources implements SourceStore {
  readonly #db: Db;
  readonly #now: Now;
  readonly #intents: SqliteIntents;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db, now: Now, intents: SqliteIntents) {
    this.#db = db;
    this.#now = now;
    this.#intents = intents;
    this.#statements = prepareStatements(db);
  }

  async claimBatchToDerive(
    claim: Claim,
    { isThorough, ...turn }: DerivingTurn = { ...ANY_TURN, isThorough: false },
  ): Promise<BatchToDerive | null> {
    const nowMs = this.#now();
    return claimInTurn(turn, {
      find: (project) => {
        const after = behind(project);
        return isThorough ? this.#findReady(nowMs, after) : this.#findAwaiting(nowMs, after);
      },
      claim: ({ sequence }) => {
        const row = this.#statements.claim.get({ ...claimValues(claim, nowMs), sequence });
        return row === undefined ? null : batchToDerive(row);
      },
    });
  }

  /** Finds the first batch that waits for one of the sources after a place. A source that none waits for loses its mark. */
  async #findAwaiting(nowMs: number, after: BatchPlace): Promise<BatchPlace | null> {
    for (let place = after; ; await nextTurn()) {
      const page = this.#db.all<Source>(sql`
        select project, sequence, (
          select sequence from batches indexed by batches_waiting_by_source
          where source_batch_id = source.id and project = source.project and ${waitsForInput}
            and (lease_expires_at_ms is null or lease_expires_at_ms <= ${nowMs})
          order by sequence limit 1) as waiting
        from batches as source indexed by batches_awaited_no_more
        where ${isAwaitedNoMore} and (project, sequence) > (${place.project}, ${place.sequence})
        order by project, sequence limit ${SOURCES_PAGE}`);
      for (const { project, waiting } of page) {
        if (waiting !== null) return { project, sequence: waiting };
      }
      for (const { sequence } of page) this.#statements.unmark.run({ sequence });
      const last = page.at(-1);
      if (last === undefined || page.length < SOURCES_PAGE) return null;
      place = last;
    }
  }

  /** Finds the first batch after a place whose source has ended, page by page. */
  async #findReady(nowMs: number, after: BatchPlace): Promise<BatchPlace | null> {
    for (let place = after; ; await nextTurn()) {
      const page = this.#db.all<Waiting>(sql`
        select project, sequence, ${sourceHasEnded} as isReady from (
          select project, sequence, source_batch_id from batches indexed by batches_to_derive
          where ${waitsForInput} and (lease_expires_at_ms is null or lease_expires_at_ms <= ${nowMs})
            and (project, sequence) > (${place.project}, ${place.sequence})
          order by project, sequence limit ${WAITING_PAGE}) as waiting`);
      const ready = page.find(({ isReady }) => isReady === 1);
      if (ready !== undefined) return ready;
      const last = page.at(-1);
      if (last === undefined || page.length < WAITING_PAGE) return null;
      place = last;
    }
  }

  async publishInputIfLeased(
    lease: BatchLease,
    input: DerivedInput,
  ): Promise<"stored" | "lost" | "gone" | "revoked"> {
    const { file, merge, quotas } = input;
    return write(this.#db, () => {
      const held = and(isHeldBatch, waitsForInput);
      const row = this.#db
        .select()
        .from(batches)
        .where(held)
        .prepare()
        .get({ ...lease });
      if (row === undefined) return "lost";
      if (!this.#hasSource(batchFromRow(row), merge)) return "gone";
      if (!this.#intents.consume(file.blobKey)) return "revoked";
      insertFile(this.#db, file, quotas);
      this.#db
        .update(batches)
        .set({
          ...derivedColumns(input),
          ...NO_LEASE,
        })
        .where(held)
        .prepare()
        .run({ ...lease });
      return "stored";
    });
  }

  #hasSource({ project, source }: Batch, merge: MergedFiles | null): boolean {
    if (source === null) return false;
    const found = this.#db.select({ id: batches.id }).from(batches).where(isScopedBatch).prepare();
    if (found.get({ project, id: source.batchId }) === undefined) return false;
    const { outputFileId = null, errorFileId = null } = merge ?? {};
    return [outputFileId, errorFileId].every((id) => {
      if (id === null) return true;
      const isPresent = and(isFile({ project, id }), isListed);
      return this.#db.select({ id: files.id }).from(files).where(isPresent).get() !== undefined;
    });
  }

  async findInput({ project, inputFileId }: Batch): Promise<StoredFile | null> {
    return this.#find(project, inputFileId);
  }

  async findMergedResults({ project, source }: Batch): Promise<MergedResults> {
    return {
      output: this.#find(project, source?.merge?.outputFileId ?? null),
      error: this.#find(project, source?.merge?.errorFileId ?? null),
    };
  }

  /** Finds a file that may be deleted. */
  #find(project: string, id: UntrustedId<"file"> | null): StoredFile | null {
    if (id === null) return null;
    const row = this.#db.select().from(files).where(isFile({ project, id })).get();
    return row === undefined ? null : fileFromRow(row);
  }

  async listRetries(sourceIds: readonly BatchId[]): Promise<Retry[]> {
    return sourceIds.flatMap((sourceId) =>
      this.#statements.listRetries.all({ sourceId }).map(({ batchId }) => ({ sourceId, batchId })),
    );
  }
}
