/**
 * Counts the tokens that answers are paid for, by model. `segments.ts` adds to it, in the statement that adds a
 * segment.
 */
import type { BatchId } from "../../batch/batch.ts";
import { parsePrice } from "../../batch/price.ts";
import type { PricedUsage, UsageCursor, UsagePage, UsageQuery } from "../usage.ts";
import type { Database } from "./database.ts";
import { and, asc, eq, inArray, lte, ne, sql } from "./drizzle.ts";
import { modelUsage } from "./usage-schema.ts";

const PAGE_ROWS = 5_000;

const COUNTS = ["request_count", "input_tokens", "cached_tokens", "output_tokens"] as const;
const total = (column: (typeof COUNTS)[number]) =>
  sql<number>`sum(${sql.identifier(column)})`.mapWith(Number);

export class PostgresModelUsage {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  async findPriced(batchIds: readonly BatchId[]): Promise<PricedUsage[]> {
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

  async list(query: UsageQuery, after: UsageCursor | null): Promise<UsagePage> {
    const { project, fromDay, toDay } = query;
    const { day, sequence } = after ?? { day: fromDay, sequence: 0 };
    const rows = await this.#db.read((db) =>
      db
        .select()
        .from(modelUsage)
        .where(
          and(
            project === null ? undefined : eq(modelUsage.project, project),
            sql`(day, sequence) > (${day}, ${sequence})`,
            lte(modelUsage.day, toDay),
          ),
        )
        .orderBy(asc(modelUsage.day), asc(modelUsage.sequence))
        .limit(PAGE_ROWS),
    );
    const last = rows.length < PAGE_ROWS ? undefined : rows.at(-1);
    return {
      rows: rows.map(({ price, ...row }) => ({ ...row, price: parsePrice(price) })),
      next: last === undefined ? null : { day: last.day, sequence: last.sequence },
    };
  }
}
