/** The tables of what answers take. `schema.ts` has the rules of all tables. */
import type { BatchId } from "../../batch/batch.ts";
import { count, sequence } from "./columns.ts";
import { index, integer, sqliteTable, text, uniqueIndex } from "./drizzle.ts";

/**
 * The sums of the segments of a batch by model, day and price. They stay when the batch is deleted: what was used was
 * used.
 */
export const modelUsage = sqliteTable(
  "model_usage",
  {
    sequence: sequence(),
    batchId: text("batch_id").$type<BatchId>().notNull(),
    project: text("project").notNull(),
    model: text("model").notNull(),
    day: text("day").notNull(),
    /** The text of `priceKey`. */
    price: text("price").notNull(),
    requestCount: count("request_count"),
    inputTokens: count("input_tokens"),
    cachedTokens: count("cached_tokens"),
    outputTokens: count("output_tokens"),
  },
  (usage) => [
    uniqueIndex("model_usage_by_batch").on(usage.batchId, usage.model, usage.day, usage.price),
    index("model_usage_by_day").on(usage.day, usage.sequence),
    index("model_usage_by_project_and_day").on(usage.project, usage.day, usage.sequence),
  ],
);

/**
 * The sums of `model_usage` by project, day and price, kept by triggers. Each reservation of a project with a quota asks for
 * them, and a month of `model_usage` may have 300,000 rows.
 */
export const usageSums = sqliteTable(
  "usage_sums",
  {
    sequence: sequence(),
    project: text("project").notNull(),
    day: text("day").notNull(),
    price: text("price").notNull(),
    requestCount: count("request_count"),
    inputTokens: count("input_tokens"),
    cachedTokens: count("cached_tokens"),
    outputTokens: count("output_tokens"),
  },
  (sums) => [uniqueIndex("usage_sums_key").on(sums.project, sums.day, sums.price)],
);

/**
 * What the lines under way in a chunk may use, where their batch has a budget or their project a quota. A row counts while
 * its epoch holds the chunk.
 */
export const reservations = sqliteTable(
  "reservations",
  {
    sequence: sequence(),
    batchId: text("batch_id").$type<BatchId>().notNull(),
    chunkNumber: integer("chunk_number").notNull(),
    epoch: integer("epoch").notNull(),
    project: text("project").notNull(),
    tokens: count("tokens"),
    /** An amount in units of 10^-18, as a text: it may exceed 64 bits. */
    cost: text("cost").notNull(),
  },
  (row) => [
    uniqueIndex("reservations_by_chunk").on(row.batchId, row.chunkNumber),
    index("reservations_by_project").on(row.project),
  ],
);
