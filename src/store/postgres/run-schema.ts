/** The table of what run records are made of. `schema.ts` has the rules of all tables. */
import type { BatchId } from "../../batch/batch.ts";
import type { InputSummary, ResultSummary } from "../../batch/run-summary.ts";
import { sequence, text } from "./columns.ts";
import { json, pgTable, unique } from "./drizzle.ts";
import { batches } from "./schema.ts";

/** The columns are left out of `batches`, whose rows every journal segment changes and every list reads. */
export const batchRuns = pgTable(
  "batch_runs",
  {
    sequence: sequence(),
    batchId: text("batch_id")
      .$type<BatchId>()
      .notNull()
      .references(() => batches.id, { onDelete: "cascade" }),
    input: json("input").$type<InputSummary>(),
    results: json("results").$type<ResultSummary>(),
    record: text("record"),
  },
  (run) => [unique("batch_runs_batch_id").on(run.batchId)],
);
