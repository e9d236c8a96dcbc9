/** Batches that run lines of other batches again. */
import type { Batch, BatchId, StoredFile, UntrustedId } from "../../batch/batch.ts";
import { fileFromRow } from "../rows.ts";
import { type DerivedBatch, MAX_RETRIES, type MergedResults, type Retry } from "../sources.ts";
import type { SqliteBatches } from "./batches.ts";
import { hasSource, isListed } from "./conditions.ts";
import { type Db, write } from "./database.ts";
import { and, desc, eq } from "./drizzle.ts";
import { files } from "./file-schema.ts";
import { insertFile } from "./files.ts";
import type { SqliteIntents } from "./intents.ts";
import { batches } from "./schema.ts";
import { isFile } from "./scope.ts";

export class SqliteSources {
  readonly #db: Db;
  readonly #batches: SqliteBatches;
  readonly #intents: SqliteIntents;

  constructor(db: Db, parts: { readonly batches: SqliteBatches; readonly intents: SqliteIntents }) {
    this.#db = db;
    this.#batches = parts.batches;
    this.#intents = parts.intents;
  }

  insertDerived(
    { batch, file, receipt, quotas }: DerivedBatch,
    nowMs: number,
  ): "stored" | "gone" | "revoked" {
    return write(this.#db, () => {
      if (!this.#hasSource(batch)) return "gone";
      if (!this.#intents.consume(file.blobKey)) return "revoked";
      insertFile(this.#db, file, quotas);
      this.#batches.insertWithin(batch, { receipt, quotas, nowMs });
      return "stored";
    });
  }

  #hasSource({ project, source }: Batch): boolean {
    if (source === null || this.#batches.find({ project, id: source.batchId }) === null) {
      return false;
    }
    const { outputFileId = null, errorFileId = null } = source.merge ?? {};
    return [outputFileId, errorFileId].every((id) => {
      if (id === null) return true;
      const isPresent = and(isFile({ project, id }), isListed);
      return this.#db.select({ id: files.id }).from(files).where(isPresent).get() !== undefined;
    });
  }

  findMergedResults({ project, source }: Batch): MergedResults {
    const find = (id: UntrustedId<"file"> | null): StoredFile | null => {
      if (id === null) return null;
      const row = this.#db.select().from(files).where(isFile({ project, id })).get();
      return row === undefined ? null : fileFromRow(row);
    };
    return {
      output: find(source?.merge?.outputFileId ?? null),
      error: find(source?.merge?.errorFileId ?? null),
    };
  }

  listRetries(sourceIds: readonly BatchId[]): Retry[] {
    return sourceIds.flatMap((sourceId) =>
      this.#db
        .select({ batchId: batches.id })
        .from(batches)
        .where(and(eq(batches.sourceBatchId, sourceId), hasSource, isListed))
        .orderBy(desc(batches.sequence))
        .limit(MAX_RETRIES)
        .all()
        .map(({ batchId }) => ({ sourceId, batchId })),
    );
  }
}
