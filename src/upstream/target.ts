import type { Outcome } from "../batch/outcome.ts";
import type { Clock } from "../clock.ts";
import type { UpstreamConfig } from "../config-upstreams.ts";
import type { Log } from "../log.ts";
import { Client } from "./client.ts";
import { TargetHealth } from "./health.ts";
import { Limiter } from "./limiter.ts";
import { ANY_MODEL, upstreamNames } from "./router.ts";
import type { UpstreamRequest } from "./upstream.ts";

const MODEL_LIST_TIMEOUT_MS = 2_000;
const NEVER = new AbortController().signal;

export interface TargetOptions {
  readonly maxAnswerBytes: number;
  readonly clock: Clock;
  readonly log: Log;
}

/** One upstream endpoint: its connections, its slots and its condition. */
export class Target {
  readonly name: string;
  readonly limiter: Limiter;
  readonly health: TargetHealth;
  readonly #client: Client;
  readonly #names: ReadonlyMap<string, string | null>;

  constructor(config: UpstreamConfig, options: TargetOptions) {
    this.name = config.name;
    this.limiter = new Limiter(config.max_concurrency);
    this.health = new TargetHealth(config.name, options);
    this.#names = upstreamNames(config.models);
    this.#client = new Client({
      baseUrl: config.base_url,
      apiKey: config.api_key ?? null,
      maxConnections: config.max_concurrency,
      timeoutMs: config.timeout_seconds * 1000,
      maxAnswerBytes: options.maxAnswerBytes,
      clock: options.clock,
    });
  }

  get servesAnyModel(): boolean {
    return this.#names.has(ANY_MODEL);
  }

  /** One attempt; never rejects. The caller holds a slot, and tells the target's health of the outcome. */
  send(request: UpstreamRequest, abort: AbortSignal): Promise<Outcome> {
    const path = request.endpoint.slice("/v1".length);
    const body = request.bodyFor(this.#nameOf(request.model));
    const exchange = { method: "POST", path, body } as const;
    return this.#client.send(exchange, abort);
  }

  /** The models that the endpoint says it has. */
  listModels(): Promise<Outcome> {
    return this.#client.send(
      { method: "GET", path: "/models", body: null, timeoutMs: MODEL_LIST_TIMEOUT_MS },
      NEVER,
    );
  }

  #nameOf(model: string): string | null {
    return this.#names.get(this.#names.has(model) ? model : ANY_MODEL) ?? null;
  }

  async close(): Promise<void> {
    await this.#client.close();
  }
}
