/** The removal of the chunk and segment rows of final batches. */
import { setImmediate as nextTurn } from "node:timers/promises";
import type { BatchId } from "../../batch/batch.ts";
import { isBehind } from "../sql/behind.ts";
import { isFinalBatch, isToTidy } from "./conditions.ts";
import { type Db, writeUnsynced } from "./database.ts";
import { and, eq, placeholder, sql } from "./drizzle.ts";
import { batches, chunks, segments } from "./schema.ts";
import { reservations } from "./usage-schema.ts";

/** One commit deletes so many rows. It takes some 5 ms, and 20 ms for chunks that list 512 extents. */
const SEGMENT_PAGE = 1_000;
const CHUNK_PAGE = 200;

const prepareStatements = (db: Db) => ({
  findFinal: db
    .select({ id: batches.id })
    .from(batches)
    .where(and(eq(batches.id, placeholder("batchId")), isFinalBatch))
    .prepare(),
  forgetSegments: db
    .delete(segments)
    .where(
      sql`sequence in (
        select sequence from segments where batch_id = ${placeholder("batchId")} limit ${sql.raw(String(SEGMENT_PAGE))})`,
    )
    .prepare(),
  forgetChunks: db
    .delete(chunks)
    .where(
      sql`sequence in (
        select sequence from chunks where batch_id = ${placeholder("batchId")} limit ${sql.raw(String(CHUNK_PAGE))})`,
    )
    .prepare(),
  forgetReservations: db
    .delete(reservations)
    .where(eq(reservations.batchId, placeholder("batchId")))
    .prepare(),
  forgetDone: db
    .update(batches)
    .set({ hasChunks: false })
    .where(and(eq(batches.id, placeholder("batchId")), isFinalBatch))
    .prepare(),
});

export class SqliteTidying {
  readonly #db: Db;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db) {
    this.#db = db;
    this.#statements = prepareStatements(db);
  }

  async listBatchesToTidy(limit: number, after?: BatchId): Promise<BatchId[]> {
    return this.#db
      .select({ id: batches.id })
      .from(batches)
      .where(and(isToTidy, isBehind(batches, after)))
      .orderBy(batches.sequence)
      .limit(limit)
      .all()
      .map(({ id }) => id);
  }

  /**
   * Deletes the segments first, then the chunks, and clears the flag last. A deletion that is cut short is then found
   * again. So is one that a power cut takes back, and nothing here waits for the disk.
   */
  async forgetChunks(batchId: BatchId): Promise<void> {
    if (this.#statements.findFinal.get({ batchId }) === undefined) return;
    await this.deleteJournalRows(batchId);
    this.#change("forgetDone", batchId);
  }

  async deleteJournalRows(batchId: BatchId): Promise<void> {
    while (this.#change("forgetSegments", batchId) === SEGMENT_PAGE) await nextTurn();
    while (this.#change("forgetChunks", batchId) === CHUNK_PAGE) await nextTurn();
    this.#change("forgetReservations", batchId);
  }

  /** Returns the number of rows. */
  #change(
    statement: "forgetSegments" | "forgetChunks" | "forgetReservations" | "forgetDone",
    batchId: BatchId,
  ): number {
    return writeUnsynced(this.#db, () => this.#statements[statement].run({ batchId }).changes);
  }
}
