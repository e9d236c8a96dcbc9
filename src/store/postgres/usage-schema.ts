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
 * The sums of `model_usage` by project, day and price, kept by triggers, as replicas of an older version write without knowing
 * this table. Each reservation of a project with a quota asks for them, and a month of `model_usage` may have 300,000 rows.
 *
 * A batch adds to one of several stripes, drawn from its id. All batches of a project would else wait for one row, whose
 * lock lasts until the commit.
 */
export const usageSums = pgTable(
  "usage_sums",
  {
    sequence: sequence(),
    project: text("project").notNull(),
    day: text("day").notNull(),
    price: text("price").notNull(),
    stripe: integer("stripe").notNull(),
    requestCount: count("request_count"),
    inputTokens: count("input_tokens"),
    cachedTokens: count("cached_tokens"),
    outputTokens: count("output_tokens"),
  },
  (sums) => [unique("usage_sums_key").on(sums.project, sums.day, sums.price, sums.stripe)],
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
