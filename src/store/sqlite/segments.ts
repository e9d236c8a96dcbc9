/**
 * Segment rows, always changed together with the counters of their batch: the counters are the sum of the segments.
 * Every method runs inside a transaction of its caller.
 */

import { type BatchId, NO_USAGE, type Usage } from "../../batch/batch.ts";
import { addFailures, type FailureGroup, removeFailures } from "../../batch/failures.ts";
import { addLatencies, type LatencyCounts, negatedLatencies } from "../../batch/latency.ts";
import { storedUsage } from "../../batch/model-usage.ts";
import { addUsage } from "../../batch/usage.ts";
import type { Segment, SegmentEntry } from "../chunks.ts";
import type { JournalPart } from "../finalizing.ts";
import type { ChunkLease } from "../leases.ts";
import { segmentFromRow } from "../rows.ts";
import { holdsAnswers, holdsFailures } from "./conditions.ts";
import type { Db } from "./database.ts";
import { and, eq, placeholder, type SQL, sql } from "./drizzle.ts";
import type { SqliteModelUsage } from "./model-usage.ts";
import { batches, segments } from "./schema.ts";

const isBatch = eq(batches.id, placeholder("batchId"));
const isOfBatch = eq(segments.batchId, placeholder("batchId"));
const add = (column: string, name: string): SQL =>
  sql`${sql.identifier(column)} + ${placeholder(name)}`;

const linesOfChunk = sql`(
  select line_count from chunks where batch_id = batches.id and number = ${placeholder("chunkNumber")})`;

const prepareList = (db: Db, holdsPart?: SQL) =>
  db
    .select()
    .from(segments)
    .where(and(isOfBatch, eq(segments.chunkNumber, placeholder("number")), holdsPart))
    .orderBy(segments.sequence)
    .prepare();

const prepareStatements = (db: Db) => ({
  lists: {
    all: prepareList(db),
    completed: prepareList(db, holdsAnswers),
    failed: prepareList(db, holdsFailures),
  },
  insert: db
    .insert(segments)
    .values({
      batchId: placeholder("batchId"),
      chunkNumber: placeholder("chunkNumber"),
      blobKey: placeholder("blobKey"),
      bytes: placeholder("bytes"),
      crc32: placeholder("crc32"),
      completedCount: placeholder("completed"),
      failedCount: placeholder("failed"),
      usage: placeholder("usage"),
      failureGroups: placeholder("failureGroups"),
      modelUsage: placeholder("modelUsage"),
      latencyCounts: placeholder("latencyCounts"),
    })
    .onConflictDoNothing({ target: segments.blobKey })
    .prepare(),
  delete: db
    .delete(segments)
    .where(and(isOfBatch, eq(segments.blobKey, placeholder("blobKey"))))
    .returning()
    .prepare(),
  addToBatch: db
    .update(batches)
    .set({
      completedCount: add("completed_count", "completed"),
      failedCount: add("failed_count", "failed"),
      inputTokens: add("input_tokens", "inputTokens"),
      cachedTokens: add("cached_tokens", "cachedTokens"),
      outputTokens: add("output_tokens", "outputTokens"),
      reasoningTokens: add("reasoning_tokens", "reasoningTokens"),
      totalTokens: add("total_tokens", "totalTokens"),
      latencyCounts: sql`${placeholder("latencies")}`,
    })
    .where(isBatch)
    .prepare(),
  findLatencies: db
    .select({ counts: batches.latencyCounts })
    .from(batches)
    .where(isBatch)
    .prepare(),
  findFailures: db.select({ groups: batches.failureGroups }).from(batches).where(isBatch).prepare(),
  setFailures: db
    .update(batches)
    .set({ failureGroups: sql`${placeholder("failureGroups")}` })
    .where(isBatch)
    .prepare(),
  /**
   * A segment without counts is taken to have as many lines as its chunk, so that lines sent again never exceed the
   * total.
   */
  takeChunkFromBatch: db
    .update(batches)
    .set({
      completedCount: sql`max(completed_count - ${linesOfChunk}, 0)`,
      failedCount: sql`failed_count - min(failed_count, max(${linesOfChunk} - completed_count, 0))`,
    })
    .where(isBatch)
    .prepare(),
});

const negated = (usage: Usage): Usage => ({
  inputTokens: -usage.inputTokens,
  cachedTokens: -usage.cachedTokens,
  outputTokens: -usage.outputTokens,
  reasoningTokens: -usage.reasoningTokens,
  totalTokens: -usage.totalTokens,
});

export class SqliteSegments {
  readonly #modelUsage: SqliteModelUsage;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db, modelUsage: SqliteModelUsage) {
    this.#modelUsage = modelUsage;
    this.#statements = prepareStatements(db);
  }

  list(batchId: BatchId, number: number, part: JournalPart): Segment[] {
    return this.#statements.lists[part].all({ batchId, number }).map(segmentFromRow);
  }

  /** A segment that is there already is not counted again. */
  add(lease: ChunkLease, entry: SegmentEntry): void {
    const { failures } = entry;
    const failureGroups = failures.length === 0 ? null : failures;
    const modelUsage = storedUsage(entry.modelUsage);
    const row = { ...lease, ...entry, failureGroups, modelUsage };
    if (this.#statements.insert.run(row).changes === 0) return;
    const latencies = this.#latenciesWith(lease.batchId, entry.latencyCounts);
    this.#statements.addToBatch.run({ ...lease, ...entry, ...entry.usage, latencies });
    this.#modelUsage.add(lease.batchId, modelUsage);
    if (failures.length > 0) {
      this.#changeFailures(lease.batchId, (groups) => addFailures(groups, failures));
    }
  }

  /** Returns the latencies of the batch, with those that are added, as its row has them. */
  #latenciesWith(batchId: BatchId, added: LatencyCounts | null): string | null {
    const counts = this.#statements.findLatencies.get({ batchId })?.counts ?? null;
    if (counts === null && added === null) return null;
    return JSON.stringify(addLatencies(counts, added));
  }

  #changeFailures(
    batchId: BatchId,
    change: (groups: readonly FailureGroup[]) => readonly FailureGroup[],
  ): void {
    const groups = this.#statements.findFailures.get({ batchId })?.groups ?? [];
    this.#statements.setFailures.run({ batchId, failureGroups: JSON.stringify(change(groups)) });
  }

  remove(batchId: BatchId, blobKeys: readonly string[]): void {
    const counts = { completed: 0, failed: 0 };
    let usage = NO_USAGE;
    let lost: LatencyCounts | null = null;
    for (const blobKey of blobKeys) {
      const row = this.#statements.delete.get({ batchId, blobKey });
      if (row === undefined) continue;
      const { chunkNumber, completedCount, failedCount } = row;
      if (completedCount === null || failedCount === null) {
        this.#statements.takeChunkFromBatch.run({ batchId, chunkNumber });
        continue;
      }
      counts.completed -= completedCount;
      counts.failed -= failedCount;
      usage = addUsage(usage, negated(row.usage ?? NO_USAGE));
      const failures = row.failureGroups ?? [];
      if (failures.length > 0) {
        this.#changeFailures(batchId, (groups) => removeFailures(groups, failures));
      }
      if (row.latencyCounts !== null) lost = addLatencies(lost, row.latencyCounts);
      this.#modelUsage.subtract(batchId, row.modelUsage ?? []);
    }
    const latencies = this.#latenciesWith(batchId, lost && negatedLatencies(lost));
    this.#statements.addToBatch.run({ batchId, ...counts, ...usage, latencies });
  }
}
