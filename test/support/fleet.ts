/**
 * Servers of several roles on one PostgreSQL, as processes that a test may kill or stop. Each worker has an upstream of
 * its own, which shows the lines that it has sent.
 */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import OpenAI from "openai";
import { expect } from "vitest";
import { submitLines } from "./batches.ts";
import { BatchdProcess } from "./process.ts";
import { chatLines, rowsIn } from "./service.ts";
import { temporaryFolder } from "./store-builders.ts";
import { startUpstream, type TestUpstream } from "./upstream.ts";

/** The shortest lease that a configuration may name. */
const LEASE_SECONDS = 3;

export interface FleetOptions {
  readonly databaseUrl: string;
  /** The place of the blobs; a shared folder when it is left out. */
  readonly storage?: Record<string, unknown>;
  readonly config?: Record<string, unknown>;
}

export interface Member {
  readonly batchd: BatchdProcess;
  readonly url: string;
  readonly openai: OpenAI;
}

export interface Worker extends Member {
  readonly upstream: TestUpstream;
}

export interface MemberPlace {
  /** Another address of the database of the fleet, such as one behind a pooler. */
  readonly databaseUrl?: string;
  readonly env?: Readonly<Record<string, string>>;
  /** The settings of this member alone. */
  readonly config?: Record<string, unknown>;
}

export interface WorkerOptions extends MemberPlace {
  /** One that other workers have too; its own one when it is left out. */
  readonly upstream?: TestUpstream;
  /** The other fields of its entry in the configuration. */
  readonly fields?: Record<string, unknown>;
}

export class Fleet implements AsyncDisposable {
  readonly #options: FleetOptions;
  readonly #folder = temporaryFolder("batchd-fleet-");
  readonly #open: AsyncDisposable[] = [];
  #count = 0;

  constructor(options: FleetOptions) {
    this.#options = options;
  }

  /** The data folder of all members. */
  get dataDir(): string {
    return join(this.#folder.path, "data");
  }

  /** Starts an API server, which takes interactive requests if it has an upstream. */
  api({ upstream, fields, ...place }: WorkerOptions = {}): Promise<Member> {
    const upstreams = upstream === undefined ? [] : [entryOf(upstream, fields)];
    return this.#start("api", upstreams, place);
  }

  async worker({ upstream, fields, ...place }: WorkerOptions = {}): Promise<Worker> {
    const used = upstream ?? (await this.upstream());
    const member = await this.#start("worker", [entryOf(used, fields)], place);
    return { ...member, upstream: used };
  }

  async upstream(): Promise<TestUpstream> {
    const upstream = await startUpstream();
    this.#open.push({ [Symbol.asyncDispose]: () => upstream.close() });
    return upstream;
  }

  async #start(role: string, upstreams: readonly unknown[], place: MemberPlace): Promise<Member> {
    const { databaseUrl, storage, config } = this.#options;
    const path = join(this.#folder.path, `member-${++this.#count}.yaml`);
    const places = {
      server: { port: 0 },
      data_dir: this.dataDir,
      ...(storage !== undefined && { storage }),
    };
    const engine = { lease_seconds: LEASE_SECONDS };
    // JSON is YAML too.
    writeFileSync(
      path,
      JSON.stringify({ ...places, upstreams, engine, ...config, ...place.config }),
    );
    const batchd = new BatchdProcess(["serve", "--role", role, "--config", path], {
      BATCHD_DATABASE_URL: place.databaseUrl ?? databaseUrl,
      ...place.env,
    });
    this.#open.push(batchd);
    const url = await batchd.listening();
    const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "test", maxRetries: 0 });
    return { batchd, url, openai };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const each of this.#open.splice(0).reverse()) await each[Symbol.asyncDispose]();
    this.#folder[Symbol.dispose]();
  }
}

const entryOf = ({ url }: TestUpstream, fields: Record<string, unknown> = {}) => ({
  name: "model",
  base_url: url,
  models: ["*"],
  max_concurrency: 32,
  ...fields,
});

/** Creates a batch of `lineCount` lines, each answered after `delayMs`. */
export async function submit({ openai }: Member, lineCount: number, delayMs = 0) {
  const delay = delayMs === 0 ? "" : `[[delay ${delayMs}]] `;
  const lines = chatLines(lineCount, (n) => `${delay}Say ${n}`);
  return (await submitLines(openai, lines)).id;
}

type Client = Pick<Member, "openai">;

/** Returns the numbers of the lines in the output, each with the answer to that line. */
export async function answeredLines({ openai }: Client, id: string): Promise<number[]> {
  const { output_file_id: fileId } = await openai.batches.retrieve(id);
  return (await rowsIn(openai, fileId)).map((row) => {
    const n = Number(row.custom_id.slice("line-".length));
    if (!JSON.stringify(row.response?.body).includes(`Say ${n}`)) throw new Error(row.custom_id);
    return n;
  });
}

export const numbersTo = (count: number): number[] =>
  Array.from({ length: count }, (_, i) => i + 1);

export const eventually = (what: string, value: () => Promise<unknown>) =>
  expect.poll(value, { message: what, interval: 250 });

export const completed = ({ openai }: Client, id: string) =>
  eventually("the status of the batch", async () => {
    return (await openai.batches.retrieve(id)).status;
  }).toBe("completed");

/** Waits for the end of a batch of `lineCount` lines. */
export async function expectEveryLineOnce(api: Client, id: string, lineCount: number) {
  await completed(api, id);
  const { request_counts } = await api.openai.batches.retrieve(id);
  expect(request_counts).toEqual({ total: lineCount, completed: lineCount, failed: 0 });
  expect(await answeredLines(api, id)).toEqual(numbersTo(lineCount));
}
