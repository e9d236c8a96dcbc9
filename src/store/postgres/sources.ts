/** Batches that run lines of other batches again. */
import type { Batch, BatchId, StoredFile } from "../../batch/batch.ts";
import { fileFromRow } from "../rows.ts";
import { type DerivedBatch, MAX_RETRIES, type MergedResults, type Retry } from "../sources.ts";
import type { PostgresBatches } from "./batches.ts";
import { hasSource, isListed } from "./conditions.ts";
import type { Database, Db } from "./database.ts";
import { and, type SQL, sql } from "./drizzle.ts";
import { files } from "./file-schema.ts";
import { insertFile } from "./files.ts";
import { consumeIntent } from "./intents.ts";
import { arrayOf } from "./leases.ts";
import { batches } from "./schema.ts";
import { isFile, isScopedBatch } from "./scope.ts";

export class PostgresSources {
  readonly #db: Database;
  readonly #batches: PostgresBatches;

  constructor(db: Database, batches: PostgresBatches) {
    this.#db = db;
    this.#batches = batches;
  }

  insertDerived(
    { batch, file, receipt, quotas }: DerivedBatch,
    now: SQL,
  ): Promise<"stored" | "gone" | "revoked"> {
    return this.#db.transaction(async (db) => {
      if (!(await holdSource(db, batch))) return "gone";
      if (!(await consumeIntent(db, file.blobKey))) return "revoked";
      await insertFile(db, file, quotas);
      await this.#batches.insertWithin(db, batch, { receipt, quotas, now });
      return "stored";
    });
  }

  findMergedResults({ project, source }: Batch): Promise<MergedResults> {
    return this.#db.read(async (db) => {
      const find = async (id: StoredFile["id"] | null): Promise<StoredFile | null> => {
        if (id === null) return null;
        const [row] = await db.select().from(files).where(isFile({ project, id }));
        return row === undefined ? null : fileFromRow(row);
      };
      return {
        output: await find(source?.merge?.outputFileId ?? null),
        error: await find(source?.merge?.errorFileId ?? null),
      };
    });
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
          order by sequence desc limit ${MAX_RETRIES}) as retries
        order by wanted.place, retries.sequence desc`),
    );
    return rows.map(({ source_id, id }) => ({ sourceId: source_id, batchId: id }));
  }
}

/** Locks what the batch is made of, so that nothing of it is deleted before the commit. */
async function holdSource(db: Db, { project, source }: Batch): Promise<boolean> {
  if (source === null) return false;
  const isSource = isScopedBatch({ project, id: source.batchId });
  const found = await db.select({ id: batches.id }).from(batches).where(isSource).for("share");
  if (found.length === 0) return false;
  const { outputFileId = null, errorFileId = null } = source.merge ?? {};
  for (const id of [outputFileId, errorFileId]) {
    if (id === null) continue;
    const isPresent = and(isFile({ project, id }), isListed);
    const present = await db.select({ id: files.id }).from(files).where(isPresent).for("share");
    if (present.length === 0) return false;
  }
  return true;
}
