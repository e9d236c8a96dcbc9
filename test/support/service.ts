/**
 * The whole server in this process: real SQLite, real folder, real sockets, and the official SDK to drive it. Only time
 * may be a fake.
 */
import { mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import OpenAI from "openai";
import { type Clock, every, systemClock } from "../../src/clock.ts";
import type { Config } from "../../src/config/schema.ts";
import { type Runtime, startRuntime } from "../../src/runtime/runtime.ts";
import type { RuntimeOptions } from "../../src/runtime/work.ts";
import { Metrics } from "../../src/telemetry/metrics.ts";
import { submitLines, uploadLines } from "./batches.ts";
import { dataRoot } from "./data-root.ts";
import { Events } from "./events.ts";
import { FakeClock } from "./fake-clock.ts";
import { putTables } from "./tables.ts";
import { configWith } from "./yaml-config.ts";

export interface ServiceOptions {
  /** The `base_url` of the upstream that serves every model. */
  readonly upstreamUrl?: string;
  readonly clock?: Clock;
  /** The folder of an earlier service, to continue with its data. */
  readonly dataDir?: string;
  /** Metrics to read after the service is closed. */
  readonly metrics?: Metrics;
  /** The configuration, as the file has it. */
  readonly config?: Record<string, unknown>;
  /** The storage of a replica, see `replicas.ts`. */
  readonly openStorage?: RuntimeOptions["openStorage"];
  readonly role?: RuntimeOptions["role"];
}

export async function startTestService(options: ServiceOptions = {}): Promise<TestService> {
  const isOwnDir = options.dataDir === undefined;
  const dataDir = options.dataDir ?? (await mkdtemp(join(dataRoot(), "batchd-test-")));
  if (isOwnDir && !namesPlace(options)) putTables(join(dataDir, "batchd.sqlite"));
  const events = new Events();
  const { clock = systemClock } = options;
  const started = await startRuntime({
    config: configFor(options, dataDir),
    clock,
    log: events.log,
    metrics: options.metrics ?? new Metrics(),
    role: options.role ?? "all",
    ...(options.openStorage !== undefined && { openStorage: options.openStorage }),
  });
  if (!started.ok) throw new Error(started.problem);
  const reconfigure = (config: Record<string, unknown>) =>
    started.runtime.reconfigure(configFor({ config }, dataDir));
  return new TestService(started.runtime, { clock, events, dataDir, isOwnDir, reconfigure });
}

/** Whether the configuration says where rows or bytes are. Then the data folder may have to be empty. */
const namesPlace = ({ config = {} }: ServiceOptions) =>
  ["database_url", "data_dir", "storage"].some((key) => key in config);

function configFor({ upstreamUrl, config }: ServiceOptions, dataDir: string): Config {
  // A clock that is moved on by a day means no attempt to time out.
  const upstream = { name: "test", models: ["*"], timeout_seconds: 86_400 };
  const upstreams = upstreamUrl === undefined ? [] : [{ ...upstream, base_url: upstreamUrl }];
  return configWith({ server: { port: 0 }, data_dir: dataDir, upstreams, ...config });
}

export type ResultRow = {
  id: string;
  custom_id: string;
  response: { status_code: number; request_id: string; body: Record<string, unknown> } | null;
  error: { code: string; message: string } | null;
};

const STEP_MS = 20;

interface TestServiceParts {
  readonly clock: Clock;
  readonly events: Events;
  readonly dataDir: string;
  readonly isOwnDir: boolean;
  readonly reconfigure: (config: Record<string, unknown>) => void;
}

export class TestService implements AsyncDisposable {
  readonly url: string;
  readonly events: Events;
  readonly dataDir: string;
  readonly openai: OpenAI;
  /** Applies another configuration, as the file has it, without a restart. */
  readonly reconfigure: (config: Record<string, unknown>) => void;
  readonly #runtime: Runtime;
  readonly #clock: Clock;
  readonly #isOwnDir: boolean;
  #isClosed = false;

  constructor(
    runtime: Runtime,
    { clock, events, dataDir, isOwnDir, reconfigure }: TestServiceParts,
  ) {
    this.#runtime = runtime;
    this.#clock = clock;
    this.reconfigure = reconfigure;
    this.url = runtime.url;
    this.events = events;
    this.dataDir = dataDir;
    this.#isOwnDir = isOwnDir;
    this.openai = new OpenAI({ baseURL: `${runtime.url}/v1`, apiKey: "test", maxRetries: 0 });
  }

  upload(lines: readonly string[]): Promise<string> {
    return uploadLines(this.openai, lines);
  }

  /** Uploads the lines and creates a batch of them. */
  submit(
    lines: readonly string[],
    endpoint: OpenAI.BatchCreateParams["endpoint"] = "/v1/chat/completions",
  ): Promise<OpenAI.Batch> {
    return submitLines(this.openai, lines, { endpoint });
  }

  /** Resolves to the batch once it is final. */
  async ended(id: string): Promise<OpenAI.Batch> {
    const ends = ["completed", "failed", "cancelled", "expired"];
    await Promise.race(ends.map((end) => this.events.reached(`batch.${end}`, { batch: id })));
    return this.openai.batches.retrieve(id);
  }

  async run(lines: readonly string[]): Promise<OpenAI.Batch> {
    return this.ended((await this.submit(lines)).id);
  }

  /** Asks the API by plain HTTP, for what the SDK does not have. */
  async post(path: string, body: object = {}): Promise<{ status: number; text: string }> {
    const headers = { "content-type": "application/json" };
    const request = { method: "POST", headers, body: JSON.stringify(body) };
    const response = await fetch(`${this.url}/v1${path}`, request);
    return { status: response.status, text: await response.text() };
  }

  /** Resolves to the text of a result file; empty for a missing one. */
  async text(fileId: string | null | undefined): Promise<string> {
    if (fileId === null || fileId === undefined) return "";
    return (await this.openai.files.content(fileId)).text();
  }

  async rows(fileId: string | null | undefined): Promise<ResultRow[]> {
    return fileId == null ? [] : rowsIn(this.openai, fileId);
  }

  /** Stops the service like SIGTERM. The data stays. */
  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    const clock = this.#clock;
    // Time goes on, because a server waits a moment for what its clients have sent.
    const stand =
      clock instanceof FakeClock
        ? every(systemClock, STEP_MS, () => clock.advance(STEP_MS))
        : undefined;
    await this.#runtime.close();
    stand?.();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
    if (this.#isOwnDir) await rm(this.dataDir, { recursive: true, force: true });
  }
}

/** Resolves to the rows of a result file. */
export async function rowsIn(openai: OpenAI, fileId: string | null | undefined) {
  const text = await (await openai.files.content(fileId ?? "none")).text();
  const lines = text.split("\n").slice(0, -1);
  return lines.map((line) => JSON.parse(line) as ResultRow);
}

/** Returns the numbers of the lines `line-1`, `line-2`, … that the rows belong to. */
export const numbersOf = (rows: readonly ResultRow[]): number[] =>
  rows.map((row) => Number(row.custom_id.slice("line-".length)));

/** Returns one chat line. The test upstream counts requests by `user`. */
export function chatLine(customId: string, content: string, body: object = {}): string {
  return JSON.stringify({
    custom_id: customId,
    method: "POST",
    url: "/v1/chat/completions",
    body: {
      model: "test-model",
      messages: [{ role: "user", content }],
      user: customId,
      ...body,
    },
  });
}

/** Returns `count` chat lines with the ids `line-1`, `line-2`, …; `content` returns the question of each one. */
export const chatLines = (count: number, content: (n: number) => string = (n) => `Hello ${n}`) =>
  Array.from({ length: count }, (_, i) => chatLine(`line-${i + 1}`, content(i + 1)));
