/** The place of a measurement: one folder, an upstream, a server. It removes all of them after the figure. */
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { Pool } from "undici";
import packageJson from "../package.json" with { type: "json" };
import type { ModelServerStats } from "../test/support/model-server.ts";
import { Api } from "./api.ts";
import { Children, type Listening } from "./children.ts";
import { type ModelServerArgs, modelServerArgs } from "./model-server.ts";
import type { UpstreamStats } from "./upstream.ts";

const MODEL_SERVER = new URL("./model-server.ts", import.meta.url);
const UPSTREAM = new URL("./upstream.ts", import.meta.url);
const SERVER = new URL("../src/main.ts", import.meta.url);
/** The command of `npm start`, because users start the server with it. */
const START_SCRIPT = packageJson.scripts.start.split(" ");
const NODE_FLAGS = START_SCRIPT.slice(
  START_SCRIPT.indexOf("node") + 1,
  START_SCRIPT.indexOf("src/main.ts"),
);
const POLL_EVERY_MS = 10;
const MAX_FILE_BYTES = 2_000_000_000;

export interface UpstreamOptions {
  readonly delayMs?: number;
  readonly answerBytes?: number;
}

export interface ServerOptions {
  readonly upstreamUrl: string;
  readonly maxConcurrency: number;
  /** The further configuration of the upstream. */
  readonly upstreamConfig?: Readonly<Record<string, unknown>>;
  /** The name of its data folder. A second server with the same name continues with the data of the first. */
  readonly name?: string;
  readonly role?: "all" | "api" | "worker";
  /** The further configuration, such as the places of the data. */
  readonly config?: Readonly<Record<string, unknown>>;
}

export interface Server extends Listening {
  readonly api: Api;
}

/** The open stages. An interrupted bench closes them before it ends. */
const open = new Set<Stage>();

export async function closeStages(): Promise<void> {
  await Promise.all([...open].map((stage) => stage[Symbol.asyncDispose]()));
}

export class Stage implements AsyncDisposable {
  readonly #folder: string;
  readonly children: Children;
  readonly #pools: Pool[] = [];

  private constructor(folder: string) {
    this.#folder = folder;
    this.children = new Children(join(folder, "children.log"));
  }

  static async open(): Promise<Stage> {
    const stage = new Stage(await mkdtemp(join(tmpdir(), "batchd-bench-")));
    open.add(stage);
    return stage;
  }

  path(name: string): string {
    return join(this.#folder, name);
  }

  async upstream({
    delayMs = 0,
    answerBytes = 100,
  }: UpstreamOptions = {}): Promise<UpstreamClient> {
    const args = ["--delay-ms", String(delayMs), "--answer-bytes", String(answerBytes)];
    const { url } = await this.children.listen(UPSTREAM, args);
    return new UpstreamClient(url, this.#pool(url));
  }

  /** Starts an upstream with a limited capacity. */
  async modelServer(options: ModelServerArgs): Promise<ModelServerClient> {
    const { url } = await this.children.listen(MODEL_SERVER, modelServerArgs(options));
    return new ModelServerClient(url, this.#pool(url));
  }

  async server(options: ServerOptions): Promise<Server> {
    const { upstreamUrl, maxConcurrency, upstreamConfig, name = "data", role = "all" } = options;
    const configPath = this.path(`${name}.yaml`);
    const upstream = {
      name: "bench",
      base_url: `${upstreamUrl}/v1`,
      models: ["*"],
      max_concurrency: maxConcurrency,
      ...upstreamConfig,
    };
    const config = {
      data_dir: this.path(name),
      limits: { max_file_bytes: MAX_FILE_BYTES },
      upstreams: [upstream],
      ...options.config,
    };
    // JSON is valid YAML.
    await writeFile(configPath, JSON.stringify(config));
    const args = ["serve", "--role", role, "--config", configPath, "--port", "0"];
    const listening = await this.children.listen(SERVER, args, NODE_FLAGS);
    return { ...listening, api: new Api(this.#pool(listening.url)) };
  }

  /** Starts a plain server for files, as a floor. */
  async bareServer(script: URL, args: readonly string[]): Promise<Api> {
    const { url } = await this.children.listen(script, args);
    return new Api(this.#pool(url));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    open.delete(this);
    await Promise.all(this.#pools.map((pool) => pool.destroy()));
    await this.children.killAll();
    await rm(this.#folder, { recursive: true, force: true });
  }

  #pool(url: string): Pool {
    const pool = new Pool(url, { headersTimeout: 0, bodyTimeout: 0 });
    this.#pools.push(pool);
    return pool;
  }
}

export class ModelServerClient {
  readonly url: string;
  readonly #pool: Pool;

  constructor(url: string, pool: Pool) {
    this.url = url;
    this.#pool = pool;
  }

  async stats(): Promise<ModelServerStats> {
    const { body } = await this.#pool.request({ method: "GET", path: "/stats" });
    return (await body.json()) as ModelServerStats;
  }
}

export class UpstreamClient {
  readonly url: string;
  readonly #pool: Pool;

  constructor(url: string, pool: Pool) {
    this.url = url;
    this.#pool = pool;
  }

  async stats(): Promise<UpstreamStats> {
    const { body } = await this.#pool.request({ method: "GET", path: "/stats" });
    return (await body.json()) as UpstreamStats;
  }

  /** Resolves after `count` requests, to the requests a second in their latter half. */
  async receives(count: number): Promise<number> {
    const half = await this.#receivedAtLeast(count / 2);
    const all = await this.#receivedAtLeast(count);
    return ((all.received - half.received) / (all.atMs - half.atMs)) * 1000;
  }

  async #receivedAtLeast(count: number): Promise<{ received: number; atMs: number }> {
    for (;;) {
      const { received } = await this.stats();
      if (received >= count) return { received, atMs: performance.now() };
      await delay(POLL_EVERY_MS);
    }
  }

  async forget(): Promise<void> {
    const { body } = await this.#pool.request({ method: "DELETE", path: "/stats" });
    await body.dump();
  }
}
