/** A batchd process of its own, and the ways in which checks talk to it. */
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import OpenAI from "openai";
import type { TestPostgres } from "../test/support/postgres.ts";
import { BatchdProcess } from "../test/support/process.ts";
import type { S3Server } from "../test/support/s3-server.ts";
import { jsonl } from "./lines.ts";

/** A JSON body of any kind. */
export type Json = Record<string, unknown>;

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
  /** The body; empty when it is not a JSON object. */
  readonly json: Json;
}

export interface Call {
  readonly json?: unknown;
  readonly body?: RequestInit["body"];
  readonly headers?: Record<string, string>;
}

export interface Batch extends Json {
  readonly id: string;
  readonly status: string;
  readonly created_at: number;
  readonly expires_at: number;
  readonly output_file_id: string | null;
  readonly error_file_id: string | null;
  readonly request_counts: { total: number; completed: number; failed: number };
}

export interface Row {
  readonly id: string;
  readonly custom_id: string;
  readonly response: { status_code: number; request_id: string; body: Json } | null;
  readonly error: { code: string; message: string } | null;
}

const ENDED = ["completed", "failed", "cancelled", "expired"];
const POLL_MS = 20;
/** It is as long as `expect.poll(…)` waits in the tests. */
const PATIENCE_MS = 120_000;

/** Repeats a request until the answer passes. */
export async function until<T>(
  what: string,
  ask: () => Promise<T>,
  isEnough: (answer: T) => boolean,
): Promise<T> {
  for (const startedAtMs = Date.now(); ; await sleep(POLL_MS)) {
    const answer = await ask();
    if (isEnough(answer)) return answer;
    if (Date.now() - startedAtMs > PATIENCE_MS) {
      throw new Error(`no end in sight: ${what}; last ${JSON.stringify(answer)}`);
    }
  }
}

/** The servers on which every batchd gets a database and a prefix of its own; null for SQLite and for a folder. */
interface Backends {
  readonly postgres: Pick<TestPostgres, "createDatabase"> | null;
  readonly s3: S3Server | null;
}

let backends: Backends = { postgres: null, s3: null };

export function useBackends(servers: Backends): void {
  backends = servers;
}

export interface ServerOptions {
  readonly name: string;
  /** The folder for its configuration and its data. */
  readonly folder: string;
  /** The configuration as the file has it, without port and folder. */
  readonly config: object;
  readonly key?: string;
}

export class Server implements AsyncDisposable {
  readonly url: string;
  /** The folder in which each blob is a file, below its key. The bucket of the S3 server is a folder too. */
  readonly blobsDir: string;
  readonly process: BatchdProcess;
  readonly openai: OpenAI;
  readonly #key: string | undefined;

  private constructor(
    batchd: BatchdProcess,
    { url, blobsDir, key }: { url: string; blobsDir: string; key: string | undefined },
  ) {
    this.process = batchd;
    this.url = url;
    this.blobsDir = blobsDir;
    this.#key = key;
    this.openai = this.client(key);
  }

  static async start({ name, folder, config, key }: ServerOptions): Promise<Server> {
    const dataDir = join(folder, `${name}-data`);
    const path = join(folder, `${name}.yaml`);
    mkdirSync(folder, { recursive: true });
    const { postgres, s3 } = backends;
    const prefix = `${name}-${randomUUID()}/`;
    const places = {
      server: { port: 0 },
      data_dir: dataDir,
      ...(postgres !== null && { database_url: await postgres.createDatabase() }),
      ...(s3 !== null && { storage: s3.storage({ prefix }) }),
    };
    writeFileSync(path, JSON.stringify({ ...places, ...config }));
    const batchd = new BatchdProcess(["serve", "--config", path]);
    // No server may outlive this program, however it ends.
    process.once("exit", () => batchd.signal("SIGKILL"));
    const blobsDir = s3 === null ? join(dataDir, "blobs") : join(s3.bucketFolder, prefix);
    return new Server(batchd, { url: await batchd.listening(), blobsDir, key });
  }

  /** The official client, without repetitions, so that checks see every answer. */
  client(key = "sk-not-needed", options: { maxRetries?: number } = {}): OpenAI {
    return new OpenAI({ baseURL: `${this.url}/v1`, apiKey: key, maxRetries: 0, ...options });
  }

  async call(method: string, path: string, { json, body, headers }: Call = {}): Promise<Answer> {
    const response = await fetch(this.url + path, {
      method,
      headers: {
        ...(json === undefined ? {} : { "content-type": "application/json" }),
        ...(this.#key === undefined ? {} : { authorization: `Bearer ${this.#key}` }),
        ...headers,
      },
      body: json === undefined ? (body ?? null) : JSON.stringify(json),
    });
    const text = await response.text();
    return { status: response.status, headers: response.headers, text, json: objectIn(text) };
  }

  get = (path: string, headers: Record<string, string> = {}): Promise<Answer> =>
    this.call("GET", path, { headers });

  post = (path: string, json: unknown, headers: Record<string, string> = {}): Promise<Answer> =>
    this.call("POST", path, { json, headers });

  /** Returns the form of `POST /v1/files`. */
  sendFile(content: string | Uint8Array<ArrayBuffer>, fields: Record<string, string> = {}) {
    const form = new FormData();
    for (const [name, value] of Object.entries({ purpose: "batch", ...fields })) {
      if (name !== "filename" && value !== "") form.set(name, value);
    }
    form.set("file", new Blob([content]), fields["filename"] ?? "input.jsonl");
    return this.call("POST", "/v1/files", { body: form });
  }

  async upload(lines: readonly string[]): Promise<string> {
    const answer = await this.sendFile(jsonl(lines));
    assert.equal(answer.status, 200, answer.text);
    return String(answer.json["id"]);
  }

  create(inputFileId: string, more: object = {}): Promise<Answer> {
    return this.post("/v1/batches", {
      input_file_id: inputFileId,
      endpoint: "/v1/chat/completions",
      completion_window: "24h",
      ...more,
    });
  }

  /** Uploads the lines and creates a batch of them. */
  async submit(lines: readonly string[], more: object = {}): Promise<Batch> {
    const answer = await this.create(await this.upload(lines), more);
    assert.equal(answer.status, 200, answer.text);
    return answer.json as Batch;
  }

  async batch(id: string): Promise<Batch> {
    return (await this.get(`/v1/batches/${id}`)).json as Batch;
  }

  /** Resolves to the batch once it is final. */
  ended(id: string): Promise<Batch> {
    return this.reached(id, ({ status }) => ENDED.includes(status));
  }

  reached(id: string, isEnough: (batch: Batch) => boolean): Promise<Batch> {
    return until(`batch ${id}`, () => this.batch(id), isEnough);
  }

  async run(lines: readonly string[], more: object = {}): Promise<Batch> {
    return this.ended((await this.submit(lines, more)).id);
  }

  /** Resolves to the text of a file; empty for a missing one. */
  async text(fileId: string | null): Promise<string> {
    return fileId === null ? "" : (await this.get(`/v1/files/${fileId}/content`)).text;
  }

  async rows(fileId: string | null): Promise<Row[]> {
    const lines = (await this.text(fileId)).split("\n");
    assert.equal(lines.pop(), "", "the last line has no newline");
    return lines.map((text) => JSON.parse(text) as Row);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.process[Symbol.asyncDispose]();
  }
}

function objectIn(text: string): Json {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? (value as Json) : {};
  } catch {
    return {};
  }
}
