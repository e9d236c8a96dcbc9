/** Sends a result file as a table. A table is made while it is sent, so it has no length and no ranges. */
import { assertHasResults, type Tables } from "../api/tables.ts";
import type { StoredFile } from "../batch/batch.ts";
import type { TableFormat } from "../contract/results.ts";
import type { Log } from "../telemetry/log.ts";
import { abortedByClient } from "./connection.ts";
import type { AppContext } from "./context.ts";
import { contentDisposition } from "./download.ts";
import { answerStream } from "./stream-answer.ts";

const CONTENT_TYPES = {
  csv: "text/csv; charset=utf-8",
  parquet: "application/vnd.apache.parquet",
} as const;

interface TableDownload {
  readonly file: StoredFile;
  readonly format: TableFormat;
  readonly tables: Tables;
  readonly log: Log;
}

export async function answerTable(
  c: AppContext,
  { file, format, tables, log }: TableDownload,
): Promise<Response> {
  assertHasResults(file, format);
  const headers = {
    "content-type": CONTENT_TYPES[format],
    "content-disposition": contentDisposition(tableName(file.filename, format)),
    "accept-ranges": "none",
  };
  if (c.req.method === "HEAD") return c.body(null, 200, headers);
  using table = await tables.open(file, format, abortedByClient(c.env.outgoing));
  return await answerStream(c, {
    headers,
    pieces: table.content,
    signal: table.over,
    log,
    about: { file: file.id, format },
  });
}

const tableName = (filename: string, format: TableFormat): string =>
  `${filename.replace(/\.jsonl$/, "")}.${format}`;
