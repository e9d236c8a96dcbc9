/**
 * Sends the content of a file, or one range of it, or the address at which the storage has it. The bytes go from the blob
 * to the connection without a web stream between them, which would halve the speed. The middleware then finds the answer
 * already sent.
 */
import type { ServerResponse } from "node:http";
import type { Readable } from "node:stream";
import { RESPONSE_ALREADY_SENT } from "@hono/node-server/utils/response";
import type { Files } from "../api/files.ts";
import type { StoredFile } from "../batch/batch.ts";
import type { ByteRange } from "../blobs/blobs.ts";
import { PublicError } from "../errors.ts";
import type { Log } from "../telemetry/log.ts";
import { truncate } from "../text/truncate.ts";
import { logBroken, whenClosed } from "./connection.ts";
import type { AppContext } from "./context.ts";
import { judge } from "./preconditions.ts";
import { trackingHeaders } from "./track.ts";

export async function answerContent(
  c: AppContext,
  file: StoredFile,
  { files, log }: { readonly files: Files; readonly log: Log },
): Promise<Response> {
  const etag = etagOf(file);
  const condition = judge(c, etag);
  if (condition === "not_modified") return c.body(null, 304, { etag });
  if (condition === "failed") throw changed(file);
  const isHead = c.req.method === "HEAD";
  const part = isHead ? null : partOf(c, file);
  const range = part ?? { start: 0, end: file.bytes };
  const status = part === null ? 200 : 206;
  const headers = contentHeaders(file, range, part !== null);
  if (mayRedirect(c)) {
    const location = await files.linkTo(file, {
      contentType: headers["content-type"],
      contentDisposition: headers["content-disposition"],
    });
    // The link is a secret with a short life, so no cache may keep it.
    if (location !== null) return c.body(null, 302, { location, "cache-control": "no-store" });
  }
  if (isHead || range.start === range.end) return c.body(null, status, headers);
  const content = await files.openContent(file, range);
  const { outgoing } = c.env;
  outgoing.writeHead(status, { ...headers, ...trackingHeaders(c) });
  whenClosed(outgoing, () => content.destroy());
  // A client that reads nothing would keep the connection of a deleted file.
  content.once("error", () => outgoing.destroy());
  await sendPieces(content, outgoing).catch((err: unknown) => {
    outgoing.destroy();
    logBroken(log, { file: file.id, request_id: c.get("requestId") }, content.errored ?? err);
  });
  return RESPONSE_ALREADY_SENT;
}

/**
 * Sends the pieces one after the other, and frees the memory of each as soon as the system has its bytes. V8 would free it too,
 * but it looks through the whole heap once the pieces have 40 MB, which took two thirds of the time of a download.
 */
async function sendPieces(content: Readable, outgoing: ServerResponse): Promise<void> {
  for await (const piece of content as AsyncIterable<Buffer<ArrayBuffer>>) {
    await settled((done) => outgoing.write(piece, done));
    // Nothing else reads from this content. A shorter piece may share its memory.
    if (piece.length === piece.buffer.byteLength) piece.buffer.transfer(0);
  }
  await settled((done) => outgoing.end(done));
}

const settled = (act: (done: (error?: Error | null) => void) => void): Promise<void> =>
  new Promise((resolve, reject) => {
    act((error) => (error ? reject(error) : resolve()));
  });

/**
 * The headers with which batchd answers itself. The bucket has other ETags and dates, so it could not judge the
 * conditions. Clients repeat their headers at the new address, apart from `Authorization`, so a key in `api-key` would
 * reach the bucket.
 */
const NOT_FOR_BUCKETS = ["if-range", "if-match", "if-unmodified-since", "api-key"];

/** A link is signed for GET alone. */
const mayRedirect = (c: AppContext): boolean =>
  c.req.method === "GET" && NOT_FOR_BUCKETS.every((name) => c.req.header(name) === undefined);

const contentHeaders = (file: StoredFile, range: ByteRange, isPart: boolean) => ({
  "content-type": "application/octet-stream",
  "content-disposition": contentDisposition(file.filename),
  "content-length": String(range.end - range.start),
  "accept-ranges": "bytes",
  etag: etagOf(file),
  ...(isPart ? { "content-range": `bytes ${range.start}-${range.end - 1}/${file.bytes}` } : {}),
});

const changed = ({ id }: StoredFile) =>
  new PublicError("precondition_failed", `The content of '${id}' has another ETag.`, {
    param: "If-Match",
  });

/** Files never change, so the digest identifies the only version. */
const etagOf = (file: StoredFile) => `"${file.sha256}"`;

/** Returns the range that the client asks for; null for the whole file. */
function partOf(c: AppContext, file: StoredFile): ByteRange | null {
  const header = c.req.header("range");
  const condition = c.req.header("if-range");
  if (header === undefined || (condition !== undefined && condition !== etagOf(file))) return null;
  const range = parseRange(header, file.bytes);
  if (range !== "unsatisfiable") return range;
  c.header("content-range", `bytes */${file.bytes}`);
  throw new PublicError(
    "range_not_satisfiable",
    `The range '${truncate(header)}' lies outside the file, which has ${file.bytes} bytes.`,
  );
}

/** Parses a `Range` header. The result is null for a header to ignore: several ranges, another unit, or nonsense. */
export function parseRange(header: string, bytes: number): ByteRange | "unsatisfiable" | null {
  const match = /^bytes=(\d*)-(\d*)$/i.exec(header.replaceAll(/\s/g, ""));
  if (match === null) return null;
  const [, first = "", last = ""] = match;
  if (first === "" && last === "") return null;
  if (first === "") {
    const suffixBytes = Math.min(Number(last), bytes);
    return suffixBytes === 0 ? "unsatisfiable" : { start: bytes - suffixBytes, end: bytes };
  }
  const start = Number(first);
  if (last !== "" && Number(last) < start) return null;
  if (start >= bytes) return "unsatisfiable";
  return { start, end: last === "" ? bytes : Math.min(Number(last) + 1, bytes) };
}

/** Follows RFC 6266: a name in plain ASCII, and the exact name as well where the two differ. */
export function contentDisposition(filename: string): string {
  const plain = filename.replaceAll(/[^\x20-\x7e]|["\\%]/g, "_");
  const quoted = `attachment; filename="${plain}"`;
  if (plain === filename) return quoted;
  const exact = encodeURIComponent(filename.toWellFormed()).replaceAll(
    /['()*]/g,
    (character) => `%${character.charCodeAt(0).toString(16)}`,
  );
  return `${quoted}; filename*=UTF-8''${exact}`;
}
