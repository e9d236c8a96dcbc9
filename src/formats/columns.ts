/** The columns of results as a table, in their order, the same in every format. docs/data.md describes them. */
import type { ResultRow } from "./result-row.ts";

type ColumnType = "text" | "integer";

export interface Column {
  readonly name: keyof ResultRow;
  readonly type: ColumnType;
}

const text = (name: keyof ResultRow): Column => ({ name, type: "text" });
const integer = (name: keyof ResultRow): Column => ({ name, type: "integer" });

export const COLUMNS: readonly Column[] = [
  text("custom_id"),
  integer("line"),
  integer("status"),
  text("text"),
  text("json"),
  text("finish_reason"),
  text("model"),
  integer("input_tokens"),
  integer("cached_tokens"),
  integer("output_tokens"),
  integer("reasoning_tokens"),
  integer("total_tokens"),
  text("error_code"),
  text("error_message"),
];
