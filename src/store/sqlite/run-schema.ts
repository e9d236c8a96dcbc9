/** The table of what run records are made of. `schema.ts` has the rules of all tables. */
import type { BatchId } from "../../batch/batch.ts";
import type { InputSummary, ResultSummary } from "../../batch/run-summary.ts";
import { sequence } from "./columns.ts";
import { sqliteTable, text, uniqueIndex } from "./drizzle.ts";
import { batches } from "./schema.ts";

/** The columns are left out of `batches`, whose rows every journal segment changes and every list reads. */
export const batchRuns = sqliteTable(
  "batch_runs",
  {
    sequence: sequence(),
    batchId: text("batch_id")
      .$type<BatchId>()
      .notNull()
      .references(() => batches.id, { onDelete: "cascade" }),
    input: text("input", { mode: "json" }).$type<InputSummary>(),
    results: text("results", { mode: "json" }).$type<ResultSummary>(),
    record: text("record"),
  },
  (run) => [uniqueIndex("batch_runs_batch_id").on(run.batchId)],
);
