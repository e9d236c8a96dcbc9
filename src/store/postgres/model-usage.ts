/**
 * Counts the tokens that answers are paid for, by model. `segments.ts` adds to it, in the statement that adds a
 * segment.
 */
import type { BatchId } from "../../batch/batch.ts";
import { parsePrice } from "../../batch/price.ts";
import { type PageSum, pageOfUsage, selectUsage } from "../sql/usage.ts";
import type { PricedUsage, UsageCursor, UsagePage, UsageQuery, UsageStore } from "../usage.ts";
import type { Database } from "./database.ts";
import { and, inArray, ne, sql } from "./drizzle.ts";
import { modelUsage } from "./usage-schema.ts";

const COUNTS = ["request_count", "input_tokens", "cached_tokens", "output_tokens"] as const;
const total = (column: (typeof COUNTS)[number]) =>
  sql<number>`sum(${sql.identifier(column)})`.mapWith(Number);

export class PostgresModelUsage implements UsageStore {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  async findPricedUsage(batchIds: readonly BatchId[]): Promise<PricedUsage[]> {
    const rows = await this.#db.read((db) =>
      db
        .select({
          batchId: modelUsage.batchId,
          price: modelUsage.price,
          requestCount: total("request_count"),
          inputTokens: total("input_tokens"),
          cachedTokens: total("cached_tokens"),
          outputTokens: total("output_tokens"),
        })
        .from(modelUsage)
        .where(and(inArray(modelUsage.batchId, [...batchIds]), ne(modelUsage.price, "")))
        .groupBy(modelUsage.batchId, modelUsage.price)
        .orderBy(sql`min(${modelUsage.sequence})`),
    );
    return rows.flatMap(({ price: key, ...usage }) => {
      const price = parsePrice(key);
      return price === null ? [] : [{ ...usage, price }];
    });
  }

  async listUsage(query: UsageQuery, after: UsageCursor | null): Promise<UsagePage> {
    const { rows } = await this.#db.read((db) =>
      db.execute<PageSum & Record<string, unknown>>(selectUsage(query, after)),
    );
    return pageOfUsage(rows);
  }
}
