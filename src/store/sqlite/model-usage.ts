/**
 * Counts the tokens that answers are paid for, by model. {@link SqliteModelUsage.add} runs inside the transaction of
 * its caller.
 */
import type { BatchId } from "../../batch/batch.ts";
import type { StoredModelUsage } from "../../batch/model-usage.ts";
import { type PageSum, pageOfUsage, pricedUsageOf, selectUsage, TOTALS } from "../sql/usage.ts";
import type { PricedUsage, UsageCursor, UsagePage, UsageQuery, UsageStore } from "../usage.ts";
import type { Db } from "./database.ts";
import { and, eq, inArray, ne, placeholder, sql } from "./drizzle.ts";
import { batches } from "./schema.ts";
import { modelUsage } from "./usage-schema.ts";

const prepareStatements = (db: Db) => ({
  findProject: db
    .select({ project: batches.project })
    .from(batches)
    .where(eq(batches.id, placeholder("batchId")))
    .prepare(),
  add: db
    .insert(modelUsage)
    .values({
      batchId: placeholder("batchId"),
      project: placeholder("project"),
      model: placeholder("model"),
      day: placeholder("day"),
      price: placeholder("price"),
      requestCount: placeholder("request_count"),
      inputTokens: placeholder("input_tokens"),
      cachedTokens: placeholder("cached_tokens"),
      outputTokens: placeholder("output_tokens"),
    })
    .onConflictDoUpdate({
      target: [modelUsage.batchId, modelUsage.model, modelUsage.day, modelUsage.price],
      set: {
        requestCount: sql`request_count + excluded.request_count`,
        inputTokens: sql`input_tokens + excluded.input_tokens`,
        cachedTokens: sql`cached_tokens + excluded.cached_tokens`,
        outputTokens: sql`output_tokens + excluded.output_tokens`,
      },
    })
    .prepare(),
});

export class SqliteModelUsage implements UsageStore {
  readonly #db: Db;
  readonly #statements: ReturnType<typeof prepareStatements>;

  constructor(db: Db) {
    this.#db = db;
    this.#statements = prepareStatements(db);
  }

  add(batchId: BatchId, entries: readonly StoredModelUsage[]): void {
    if (entries.length === 0) return;
    const project = this.#statements.findProject.get({ batchId })?.project;
    for (const entry of entries) {
      this.#statements.add.run({ batchId, project, ...entry });
    }
  }

  subtract(batchId: BatchId, entries: readonly StoredModelUsage[]): void {
    this.add(
      batchId,
      entries.map((entry) => ({
        ...entry,
        request_count: -entry.request_count,
        input_tokens: -entry.input_tokens,
        cached_tokens: -entry.cached_tokens,
        output_tokens: -entry.output_tokens,
      })),
    );
  }

  async findPricedUsage(batchIds: readonly BatchId[]): Promise<PricedUsage[]> {
    const rows = this.#db
      .select({ batchId: modelUsage.batchId, price: modelUsage.price, ...TOTALS })
      .from(modelUsage)
      .where(and(inArray(modelUsage.batchId, [...batchIds]), ne(modelUsage.price, "")))
      .groupBy(modelUsage.batchId, modelUsage.price)
      .orderBy(sql`min(${modelUsage.sequence})`)
      .all();
    return pricedUsageOf(rows);
  }

  async listUsage(query: UsageQuery, after: UsageCursor | null): Promise<UsagePage> {
    return pageOfUsage(this.#db.all<PageSum>(selectUsage(query, after)));
  }
}
