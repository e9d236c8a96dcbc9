/** The tables of what answers take. `schema.ts` has the rules of all tables. */
import type { BatchId } from "../../batch/batch.ts";
import { big, count, sequence, text } from "./columns.ts";
import { index, integer, pgTable, unique } from "./drizzle.ts";

/**
 * The sums of the segments of a batch by model, day and price. They stay when the batch is deleted: what was used was
 * used.
 */
export const modelUsage = pgTable(
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
    unique("model_usage_by_batch").on(usage.batchId, usage.model, usage.day, usage.price),
    index("model_usage_by_day").on(usage.day, usage.sequence),
    index("model_usage_by_project_and_day").on(usage.project, usage.day, usage.sequence),
  ],
);

/**
 * What the lines under way in a chunk may use, where their batch has a budget or their project a quota. A row counts while
 * its epoch holds the chunk.
 */
export const reservations = pgTable(
  "reservations",
  {
    sequence: sequence(),
    batchId: text("batch_id").$type<BatchId>().notNull(),
    chunkNumber: integer("chunk_number").notNull(),
    epoch: big("epoch").notNull(),
    project: text("project").notNull(),
    tokens: count("tokens"),
    /** An amount in units of 10^-18, as a text: it may exceed 64 bits. */
    cost: text("cost").notNull(),
  },
  (row) => [
    unique("reservations_by_chunk").on(row.batchId, row.chunkNumber),
    index("reservations_by_project").on(row.project),
  ],
);
