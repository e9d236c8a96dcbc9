/**
 * Counts the tokens that answers are paid for, by model. `segments.ts` adds to it, in the statement that adds a
 * segment.
 */
import type { BatchId } from "../../batch/batch.ts";
import { type PageSum, pageOfUsage, pricedUsageOf, selectUsage, TOTALS } from "../sql/usage.ts";
import type { PricedUsage, UsageCursor, UsagePage, UsageQuery, UsageStore } from "../usage.ts";
import type { Database } from "./database.ts";
import { and, inArray, ne, sql } from "./drizzle.ts";
import { modelUsage } from "./usage-schema.ts";

export class PostgresModelUsage implements UsageStore {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  async findPricedUsage(batchIds: readonly BatchId[]): Promise<PricedUsage[]> {
    const rows = await this.#db.read((db) =>
      db
        .select({ batchId: modelUsage.batchId, price: modelUsage.price, ...TOTALS })
        .from(modelUsage)
        .where(and(inArray(modelUsage.batchId, [...batchIds]), ne(modelUsage.price, "")))
        .groupBy(modelUsage.batchId, modelUsage.price)
        .orderBy(sql`min(${modelUsage.sequence})`),
    );
    return pricedUsageOf(rows);
  }

  async listUsage(query: UsageQuery, after: UsageCursor | null): Promise<UsagePage> {
    const { rows } = await this.#db.read((db) =>
      db.execute<PageSum & Record<string, unknown>>(selectUsage(query, after)),
    );
    return pageOfUsage(rows);
  }
}
