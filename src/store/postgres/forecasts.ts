/** The forecasts of the open batches: one row for each, which the replica that keeps house replaces. */
import type { BatchId } from "../../batch/batch.ts";
import type { BatchForecast, ForecastStore } from "../forecasts.ts";
import type { Database } from "./database.ts";
import { eq, sql } from "./drizzle.ts";
import { arrayOf } from "./leases.ts";
import { forecasts } from "./schema.ts";

const fromRow = ({ sequence: _, ...forecast }: typeof forecasts.$inferSelect): BatchForecast =>
  forecast;

/** Takes the values of the row that could not be inserted. */
const REPLACED = {
  etaAtMs: sql`excluded.eta_at_ms`,
  isAtRisk: sql`excluded.is_at_risk`,
  queuePosition: sql`excluded.queue_position`,
  waiting: sql`excluded.waiting`,
  commonFailure: sql`excluded.common_failure`,
};

const isOneOf = (ids: readonly BatchId[]) => sql`batch_id = any(${arrayOf(ids, "text")})`;

export const postgresForecasts = (db: Database): ForecastStore => ({
  recordForecasts: (changed, endedIds) =>
    db.transaction(async (tx) => {
      if (changed.length > 0) {
        await tx
          .insert(forecasts)
          .values([...changed])
          .onConflictDoUpdate({ target: forecasts.batchId, set: REPLACED });
      }
      if (endedIds.length > 0) await tx.delete(forecasts).where(isOneOf(endedIds));
    }),
  findForecasts: async (ids) =>
    (await db.read((each) => each.select().from(forecasts).where(isOneOf(ids)))).map(fromRow),
  listForecasts: async () => (await db.read((each) => each.select().from(forecasts))).map(fromRow),
  listBatchesAtRisk: async () => {
    const found = await db.read((each) =>
      each.select({ id: forecasts.batchId }).from(forecasts).where(eq(forecasts.isAtRisk, true)),
    );
    return found.map(({ id }) => id);
  },
});
