/**
 * Changes segment rows together with the counters of their batch, because the counters are the sum of the segments.
 */

import type { BatchId } from "../../batch/batch.ts";
import { addFailures, type FailureGroup, removeFailures } from "../../batch/failures.ts";
import { storedUsage } from "../../batch/model-usage.ts";
import type { SegmentEntry } from "../chunks.ts";
import type { ChunkLease } from "../leases.ts";
import { isOpenChunk } from "./conditions.ts";
import type { Db } from "./database.ts";
import { and, eq, type SQL, sql } from "./drizzle.ts";
import { arrayOf } from "./leases.ts";
import { batches, segments } from "./schema.ts";

/** The counters, as columns, and what a segment adds to each. */
const resultsOf = ({ completed, failed, usage }: SegmentEntry): readonly [string, number][] => [
  ["completed_count", completed],
  ["failed_count", failed],
  ["input_tokens", usage.inputTokens],
  ["cached_tokens", usage.cachedTokens],
  ["output_tokens", usage.outputTokens],
  ["reasoning_tokens", usage.reasoningTokens],
  ["total_tokens", usage.totalTokens],
];

const COLUMNS = [
  "completed_count",
  "failed_count",
  "input_tokens",
  "cached_tokens",
  "output_tokens",
  "reasoning_tokens",
  "total_tokens",
] as const;

const listed = (parts: readonly SQL[]): SQL => sql.join([...parts], sql`, `);
const named = (column: string): SQL => sql.identifier(column) as unknown as SQL;

/** `known` is a segment that has its row already, because its first commit was reported as failed. */
export type Added = "counted" | "known" | "not_held";

/**
 * Adds a segment in one statement. Its usage has one order, in which the triggers lock the sums: in different orders two batches
 * could cause a deadlock. `held` gives the chunk of the segment, as `batch_id` and `number`, or nothing. A segment
 * that has its row already is not counted again.
 */
export async function addSegment(db: Db, held: SQL, entry: SegmentEntry): Promise<Added> {
  const results = resultsOf(entry);
  const stored = JSON.stringify(storedUsage(entry.modelUsage));
  const latencies = arrayOf(entry.latencyCounts, "bigint");
  const { rows } = await db.execute<{ is_counted: boolean }>(sql`
    with held as (${held}),
    added as (
      insert into segments (
        batch_id, chunk_number, blob_key, bytes, crc32, failure_groups, model_usage, latency_counts,
        ${listed(results.map(([column]) => named(column)))})
      select
        batch_id, number, ${entry.blobKey}, ${entry.bytes}::bigint, ${entry.crc32}::bigint,
        ${groupsOf(entry)}::json, ${stored}::json, ${latencies},
        ${listed(results.map(([, value]) => sql`${value}::bigint`))}
      from held
      on conflict (blob_key) do nothing
      returning batch_id),
    counted as (
      update batches set
        ${listed(results.map(([column, value]) => sql`${named(column)} = ${named(column)} + ${value}::bigint`))},
        latency_counts = ${summed(sql`batches.latency_counts`, latencies)}
      from added where batches.id = added.batch_id
      returning batches.id, project),
    used as (
      insert into model_usage (batch_id, project, ${USAGE_COLUMNS})
      select counted.id, counted.project, ${USAGE_COLUMNS} from counted, ${usageIn(sql`${stored}::json`)}
      order by day, price
      on conflict (batch_id, model, day, price) do update set ${listed(
        USAGE_SUMS.map((sum) => sql`${sum} = model_usage.${sum} + excluded.${sum}`),
      )})
    select exists (select 1 from added) as is_counted from held`);
  const [row] = rows;
  if (row === undefined) return "not_held";
  return row.is_counted ? "counted" : "known";
}

/** Adds two lists of counts, each of which may be null. */
const summed = (a: SQL, b: SQL): SQL => sql`(
  select array_agg(greatest(0, coalesce(entry.a, 0) + coalesce(entry.b, 0)) order by entry.bucket)
  from unnest(${a}, ${b}) with ordinality as entry(a, b, bucket))`;

const groupsOf = ({ failures }: Pick<SegmentEntry, "failures">): string | null =>
  failures.length === 0 ? null : JSON.stringify(failures);

/**
 * Counts the failures of a segment that {@link addSegment} has counted, in the same transaction. It has locked the
 * batch.
 */
export const countFailures = (db: Db, batchId: BatchId, entry: SegmentEntry): Promise<void> =>
  changeFailures(db, batchId, (groups) => addFailures(groups, entry.failures));

async function changeFailures(
  db: Db,
  batchId: BatchId,
  change: (groups: readonly FailureGroup[]) => readonly FailureGroup[],
): Promise<void> {
  const isBatch = eq(batches.id, batchId);
  const [row] = await db
    .select({ groups: batches.failureGroups })
    .from(batches)
    .where(isBatch)
    .for("no key update");
  const failures = change(row?.groups ?? []);
  await db
    .update(batches)
    .set({ failureGroups: sql`${groupsOf({ failures })}::json` })
    .where(isBatch);
}

const USAGE_KEYS = ["model", "day", "price"].map(named);
const USAGE_SUMS = ["request_count", "input_tokens", "cached_tokens", "output_tokens"].map(named);
const USAGE_COLUMNS = listed([...USAGE_KEYS, ...USAGE_SUMS]);

/** The entries of a {@link StoredModelUsage} list, as rows. */
const usageIn = (json: SQL): SQL => sql`
  json_to_recordset(${json}) as entry(${listed([
    ...USAGE_KEYS.map((key) => sql`${key} text`),
    ...USAGE_SUMS.map((sum) => sql`${sum} bigint`),
  ])})`;

/** Takes part in a transaction that holds the lease. */
export async function removeSegments(
  db: Db,
  batchId: BatchId,
  blobKeys: readonly string[],
): Promise<void> {
  if (blobKeys.length === 0) return;
  const lost = await db
    .select({ groups: segments.failureGroups })
    .from(segments)
    .where(and(eq(segments.batchId, batchId), sql`blob_key = any(${arrayOf(blobKeys, "text")})`));
  const failures = lost.flatMap(({ groups }) => groups ?? []);
  const columns = COLUMNS.map(named);
  await db.execute(sql`
    with removed as (
      delete from segments where batch_id = ${batchId} and blob_key = any(${arrayOf(blobKeys, "text")})
      returning ${listed(columns)}, model_usage, latency_counts),
    slow as (
      select array_agg(-lines order by bucket) as counts from (
        select bucket, sum(lines)::bigint as lines
        from removed, unnest(latency_counts) with ordinality as entry(lines, bucket) group by bucket) as buckets),
    unused as (
      select ${listed(USAGE_KEYS)}, ${listed(USAGE_SUMS.map((sum) => sql`sum(entry.${sum})::bigint as ${sum}`))}
      from removed, ${usageIn(sql`coalesce(model_usage, '[]')`)} group by ${listed(USAGE_KEYS)}),
    taken as (
      update model_usage set ${listed(
        USAGE_SUMS.map((total) => sql`${total} = model_usage.${total} - unused.${total}`),
      )}
      from unused
      where batch_id = ${batchId} and (model_usage.model, model_usage.day, model_usage.price)
        = (unused.model, unused.day, unused.price)),
    total as (
      select ${listed(columns.map((column) => sql`coalesce(sum(${column}), 0)::bigint as ${column}`))} from removed)
    update batches set ${listed(columns.map((column) => sql`${column} = batches.${column} - total.${column}`))},
      latency_counts = ${summed(sql`batches.latency_counts`, sql`slow.counts`)}
    from total, slow where id = ${batchId}`);
  if (failures.length > 0) {
    await changeFailures(db, batchId, (groups) => removeFailures(groups, failures));
  }
}

/** Gives {@link addSegment} the chunk of a held lease. Its run has got further than the failed ones before, which count no more. */
export const heldChunk = ({ batchId, chunkNumber, epoch }: ChunkLease): SQL => sql`
  update chunks set failure_count = 0
  where batch_id = ${batchId} and number = ${chunkNumber} and lease_epoch = ${epoch} and lease_owner is not null
  returning batch_id, number`;

/** Gives {@link addSegment} the same chunk, and closes it. */
export const closedChunk = (lease: ChunkLease, now: SQL): SQL => sql`
  update chunks set closed_at_ms = ${now}, lease_owner = null, lease_expires_at_ms = null
  where batch_id = ${lease.batchId} and number = ${lease.chunkNumber} and lease_epoch = ${lease.epoch}
    and lease_owner is not null
  returning batch_id, number`;

/**
 * Does as {@link closedChunk} while another worked-on chunk of the batch is open, which stays locked, and so open, until the
 * commit. The batch therefore cannot end with this chunk. It gives nothing if no such chunk can be locked at once.
 */
export const closedWhileOthersRun = (lease: ChunkLease, now: SQL): SQL => sql`
  with own as (
    select sequence from chunks
    where batch_id = ${lease.batchId} and number = ${lease.chunkNumber} and lease_epoch = ${lease.epoch}
      and lease_owner is not null
    for no key update),
  other as (
    select running.sequence from own
    cross join lateral (
      select sequence from chunks
      where batch_id = ${lease.batchId} and ${isOpenChunk} and lease_owner is not null and sequence <> own.sequence
      limit 1 for no key update skip locked) as running)
  update chunks set closed_at_ms = ${now}, lease_owner = null, lease_expires_at_ms = null
  where sequence in (select sequence from own) and exists (select 1 from other)
  returning batch_id, number`;
