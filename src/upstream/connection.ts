/**
 * The way to one upstream endpoint: the names of its models, its dialect and its connections. Requests in flight end as
 * they began when the configuration changes. Whether a request may go at all is decided before (`capacity/`).
 */
import type { Outcome } from "../batch/outcome.ts";
import type { AllowedAnswer } from "../batch/token-estimate.ts";
import type { Clock } from "../clock.ts";
import type { UpstreamConfig } from "../config/upstreams.ts";
import type { Span } from "../telemetry/tracing.ts";
import { authoritiesOf, Client } from "./exchange/client.ts";
import { Dialect, type Exchange } from "./exchange/dialect.ts";
import type { UpstreamRequest } from "./request.ts";
import { ANY_MODEL, upstreamNames } from "./router.ts";

const MODEL_LIST_TIMEOUT_MS = 2_000;
/** The longest list known has some 600 kB. */
const MODEL_LIST_MAX_BYTES = 2 * 1024 * 1024;
const NEVER = new AbortController().signal;

export interface ConnectionOptions {
  readonly clock: Clock;
  readonly maxAnswerBytes: () => number;
}

interface Prepared {
  readonly client: Client;
  readonly exchange: Exchange;
}

export class Connection {
  readonly #options: ConnectionOptions;
  #dialect: Dialect;
  #client: Client;
  #names: ReadonlyMap<string, string | null>;
  /** The upstream names of models that are not listed any more. */
  #formerNames: ReadonlyMap<string, string | null> = new Map();
  /** The former clients, on which requests are ending. */
  readonly #draining = new Set<Client>();

  constructor(config: UpstreamConfig, options: ConnectionOptions) {
    this.#options = options;
    this.#names = upstreamNames(config.models);
    this.#dialect = new Dialect(config);
    this.#client = this.#newClient(config);
  }

  /** The public names of the models. */
  get models(): string[] {
    return [...this.#names.keys()];
  }

  get servesAnyModel(): boolean {
    return this.#names.has(ANY_MODEL);
  }

  /**
   * Takes another configuration from now on. A line on its way to a model that is no longer listed goes out under the
   * model's former name.
   */
  reconfigure(config: UpstreamConfig): void {
    const former = this.#client;
    this.#formerNames = new Map([...this.#formerNames, ...this.#names]);
    this.#names = upstreamNames(config.models);
    this.#dialect = new Dialect(config);
    this.#client = this.#newClient(config);
    this.#draining.add(former);
    void former.drain().then(() => this.#draining.delete(former));
  }

  /**
   * Connects anew if the file with the authorities has others by now. Call this when the endpoint cannot be reached, and at a
   * reload.
   */
  renewTrust(config: UpstreamConfig): void {
    const authorities = authoritiesOf(config);
    if (authorities !== null && authorities !== this.#client.authorities) this.reconfigure(config);
  }

  /** Returns the name of the model at the endpoint; null for the public one. */
  nameOf(model: string): string | null {
    const name = [model, ANY_MODEL].find((each) => this.#names.has(each));
    return (name === undefined ? this.#formerNames.get(model) : this.#names.get(name)) ?? null;
  }

  answerTokensOf(allowed: AllowedAnswer): number {
    return this.#dialect.answerTokensOf(allowed);
  }

  canName(request: UpstreamRequest): boolean {
    return this.#dialect.canName(request, this.nameOf(request.model));
  }

  /**
   * Makes an exchange, for the client of the same configuration: the key of one address must not reach another. Only a long
   * body makes a promise. When the configuration changes meanwhile, the exchange is made again.
   */
  prepare(request: UpstreamRequest, span: Span): Prepared | Promise<Prepared> {
    const client = this.#client;
    const { traceparent } = span;
    const sent = traceparent === null ? request : { ...request, traceparent };
    const exchange = this.#dialect.exchangeOf(sent, this.nameOf(request.model));
    if (!(exchange instanceof Promise)) return { client, exchange };
    return exchange.then((made) =>
      client === this.#client ? { client, exchange: made } : this.prepare(request, span),
    );
  }

  /** Resolves to null when the endpoint has no list of models. */
  async askForModels(): Promise<Outcome | null> {
    const { modelListPath: path, headers } = this.#dialect;
    if (path === null) return null;
    const limits = { timeoutMs: MODEL_LIST_TIMEOUT_MS, maxAnswerBytes: MODEL_LIST_MAX_BYTES };
    const exchange = { method: "GET", path, headers, body: null, ...limits } as const;
    return (await this.#client.send(exchange, NEVER)).outcome;
  }

  /** Takes nothing new; requests in flight may end. */
  drain(): Promise<void> {
    return this.#client.drain();
  }

  /** Ends the requests in flight, as interrupted. */
  async close(): Promise<void> {
    await Promise.all([this.#client, ...this.#draining].map((client) => client.close()));
  }

  #newClient(config: UpstreamConfig): Client {
    return new Client({ config, dialect: this.#dialect, ...this.#options });
  }
}
