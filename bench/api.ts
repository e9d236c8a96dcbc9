/** Uses the API of the server like a client, with files that stream from and to the disk. */
import { createReadStream } from "node:fs";
import { type FileHandle, open, stat } from "node:fs/promises";
import { Readable } from "node:stream";
import type { Pool } from "undici";
import type { BatchObject } from "../src/contract/batch.ts";
import { ENDPOINT } from "./inputs.ts";

const READ_BYTES = 1024 * 1024;
const BOUNDARY = "batchd-bench-boundary";

const HEAD = Buffer.from(
  [
    `--${BOUNDARY}`,
    `content-disposition: form-data; name="purpose"\r\n\r\nbatch`,
    `--${BOUNDARY}`,
    `content-disposition: form-data; name="file"; filename="input.jsonl"`,
    `content-type: application/jsonl\r\n\r\n`,
  ].join("\r\n"),
);
const TAIL = Buffer.from(`\r\n--${BOUNDARY}--\r\n`);

async function* formWith(path: string): AsyncGenerator<Buffer> {
  yield HEAD;
  yield* createReadStream(path, { highWaterMark: READ_BYTES });
  yield TAIL;
}

export class Api {
  readonly #pool: Pool;

  constructor(pool: Pool) {
    this.#pool = pool;
  }

  /** Resolves to the id of the file. */
  async upload(path: string): Promise<string> {
    const { size } = await stat(path);
    const file = await this.#call<{ id: string }>("POST", "/v1/files", {
      headers: {
        "content-type": `multipart/form-data; boundary=${BOUNDARY}`,
        "content-length": String(HEAD.length + size + TAIL.length),
      },
      body: Readable.from(formWith(path)),
    });
    return file.id;
  }

  /** Resolves to the length of the file. Its bytes go to `to`, with a sync at the end, or nowhere for null. */
  async download(fileId: string, to: string | null): Promise<number> {
    const path = `/v1/files/${fileId}/content`;
    const { statusCode, body } = await this.#pool.request({ method: "GET", path });
    if (statusCode !== 200) throw new Error(`GET ${path}: ${statusCode} ${await body.text()}`);
    await using file = to === null ? null : await open(to, "w");
    const bytes = await drainTo(body, file);
    await file?.sync();
    return bytes;
  }

  async deleteFile(id: string): Promise<void> {
    await this.#call("DELETE", `/v1/files/${id}`);
  }

  async createBatch(inputFileId: string): Promise<BatchObject> {
    return this.#call("POST", "/v1/batches", {
      headers: { "content-type": "application/json" },
      body: JSON.stringify({
        input_file_id: inputFileId,
        endpoint: ENDPOINT,
        completion_window: "24h",
      }),
    });
  }

  async batch(id: string): Promise<BatchObject> {
    return this.#call("GET", `/v1/batches/${id}`);
  }

  async isReady(): Promise<boolean> {
    const { statusCode, body } = await this.#pool.request({ method: "GET", path: "/ready" });
    await body.dump();
    return statusCode === 200;
  }

  async #call<T>(
    method: "GET" | "POST" | "DELETE",
    path: string,
    content: { headers?: Record<string, string>; body?: string | Readable } = {},
  ): Promise<T> {
    const { statusCode, body } = await this.#pool.request({ method, path, ...content });
    const text = await body.text();
    if (statusCode !== 200) throw new Error(`${method} ${path}: ${statusCode} ${text}`);
    return JSON.parse(text) as T;
  }
}

/** Writes one mebibyte while the next one gathers, because the driver must not slow the server down. */
async function drainTo(body: AsyncIterable<Buffer>, file: FileHandle | null): Promise<number> {
  let bytes = 0;
  let gathered: Buffer[] = [];
  let gatheredBytes = 0;
  let writing: Promise<unknown> = Promise.resolve();
  const write = async () => {
    await writing;
    if (file !== null && gatheredBytes > 0) writing = file.writev(gathered);
    gathered = [];
    gatheredBytes = 0;
  };
  for await (const piece of body) {
    bytes += piece.length;
    gathered.push(piece);
    gatheredBytes += piece.length;
    if (gatheredBytes >= READ_BYTES) await write();
  }
  await write();
  await writing;
  return bytes;
}
