/** Sends a result file as a table. A table is made while it is sent, so it has no length and no ranges. */
import { Readable } from "node:stream";
import { RESPONSE_ALREADY_SENT } from "@hono/node-server/utils/response";
import { assertHasResults, type Tables } from "../api/tables.ts";
import type { StoredFile } from "../batch/batch.ts";
import type { TableFormat } from "../contract/results.ts";
import type { Log } from "../telemetry/log.ts";
import { abortedByClient, sendStream } from "./connection.ts";
import type { AppContext } from "./context.ts";
import { contentDisposition } from "./download.ts";
import { trackingHeaders } from "./track.ts";

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
  const { outgoing } = c.env;
  using table = await tables.open(file, format, abortedByClient(outgoing));
  outgoing.writeHead(200, { ...headers, ...trackingHeaders(c) });
  const content = Readable.from(table.content, { objectMode: false });
  await sendStream(content, outgoing, table.over).catch((err: unknown) => {
    log.warn({ file: file.id, format, request_id: c.get("requestId"), err }, "download.broken");
  });
  return RESPONSE_ALREADY_SENT;
}

const tableName = (filename: string, format: TableFormat): string =>
  `${filename.replace(/\.jsonl$/, "")}.${format}`;
