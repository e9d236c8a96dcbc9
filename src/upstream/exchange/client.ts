/**
 * The HTTP client of one target: one request is one attempt, and its promise always resolves.
 *
 * It uses the connections of undici through the handler interface, which costs the least. undici reports each request
 * to one object: an `Attempt` that wants the answer whole, or a `ProxiedAnswer` that passes it on. Nothing here
 * bounds the requests in flight; each sender holds a slot of the target.
 */
import { readFileSync } from "node:fs";
import { createSecureContext, getCACertificates, type SecureContext } from "node:tls";
import { INTERRUPTED } from "../../batch/outcome.ts";
import type { Clock } from "../../clock.ts";
import type { UpstreamConfig } from "../../config/upstreams.ts";
import { lookupOnce } from "../../resources/name-lookup.ts";
import { readingAnswers } from "../../resources/reading-time.ts";
import type { Proxied } from "../request.ts";
import { Attempt, type Attempted, type AttemptRules } from "./attempt.ts";
import { basicAuthorization, type Dialect, type Exchange } from "./dialect.ts";
import { ProxiedAnswer, type Unproxied } from "./proxied-answer.ts";
import { failingOnReset } from "./resets.ts";
import type { Timeouts } from "./timeout-timer.ts";
import {
  buildConnector,
  type Dispatcher,
  loadProxyAgent,
  Pool,
  type PoolOptions,
} from "./undici.ts";

export interface ClientOptions {
  readonly config: UpstreamConfig;
  readonly dialect: Dialect;
  readonly maxAnswerBytes: () => number;
  readonly clock: Clock;
}

/** The lifetime of an idle connection. uvicorn and Node close theirs after 5 s, and none may be used as it closes. */
const KEEP_ALIVE_MS = 4_000;

export class Client {
  /** What the file with the authorities had when the client was made; null without one. */
  readonly authorities: string | null;
  readonly #connections: Dispatcher;
  readonly #origin: string;
  readonly #timeouts: Timeouts;
  readonly #rules: AttemptRules;
  #inFlightCount = 0;
  /** Ends the wait for the last request in flight. Null while the client takes requests. */
  #onIdle: (() => void) | null = null;

  constructor({ config, dialect, maxAnswerBytes, clock }: ClientOptions) {
    this.#origin = new URL(config.base_url).origin;
    this.#timeouts = timeoutsOf(config);
    this.#rules = { clock, maxAnswerBytes, redactor: dialect.redactor };
    this.authorities = authoritiesOf(config);
    this.#connections = connect(config, this.authorities);
  }

  /** The outcome is `interrupted` when `abort` aborts, or when the client is closed. */
  send(exchange: Exchange, abort: AbortSignal): Promise<Attempted> {
    if (abort.aborted || this.#onIdle !== null) {
      return Promise.resolve({ outcome: INTERRUPTED, hints: null });
    }
    this.#inFlightCount++;
    return new Promise((resolve) => {
      const settle = (attempted: Attempted) => {
        this.#remove();
        resolve(attempted);
      };
      const timeouts = this.#timeoutsFor(exchange);
      const rules = this.#rulesFor(exchange);
      this.#dispatch(
        exchange,
        new Attempt(rules, { timeouts, abort, room: exchange.room, resolve: settle }),
      );
    });
  }

  /**
   * Resolves when the answer begins. The connection is dropped when the body is destroyed, or when `abort` aborts at
   * any moment. The body fails when the answer breaks off or takes too long.
   */
  proxy(exchange: Exchange, abort: AbortSignal): Promise<Proxied | Unproxied> {
    if (abort.aborted || this.#onIdle !== null) return Promise.resolve(INTERRUPTED);
    this.#inFlightCount++;
    return new Promise((resolve) => {
      const { clock, redactor } = this.#rules;
      const timeouts = this.#timeoutsFor(exchange);
      const onOver = () => this.#remove();
      this.#dispatch(
        exchange,
        new ProxiedAnswer({ timeouts, abort, clock, redactor, resolve, onOver }),
      );
    });
  }

  #rulesFor({ maxAnswerBytes }: Exchange): AttemptRules {
    if (maxAnswerBytes === undefined) return this.#rules;
    return { ...this.#rules, maxAnswerBytes: () => maxAnswerBytes };
  }

  #timeoutsFor({ timeoutMs }: Exchange): Timeouts {
    return timeoutMs === undefined ? this.#timeouts : { ...this.#timeouts, totalMs: timeoutMs };
  }

  #dispatch({ method, path, headers, body }: Exchange, handler: Attempt | ProxiedAnswer): void {
    const request = { origin: this.#origin, method, path, headers: headers as string[], body };
    this.#connections.dispatch(request, handler);
  }

  #remove(): void {
    this.#inFlightCount--;
    if (this.#inFlightCount === 0) this.#onIdle?.();
  }

  /** Takes no new request. Resolves when all requests in flight have ended. */
  async drain(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    const before = this.#onIdle;
    this.#onIdle = () => {
      before?.();
      resolve();
    };
    if (this.#inFlightCount === 0) this.#onIdle();
    await promise;
    await this.#connections.destroy();
  }

  /** Ends the requests under way, as interrupted. */
  async close(): Promise<void> {
    await this.#connections.destroy();
  }
}

function timeoutsOf(config: UpstreamConfig): Timeouts {
  const msOf = (seconds: number | undefined) =>
    seconds === undefined ? Number.POSITIVE_INFINITY : seconds * 1000;
  return {
    connectMs: msOf(config.connect_timeout_seconds),
    firstByteMs: msOf(config.first_byte_timeout_seconds),
    idleMs: msOf(config.idle_timeout_seconds),
    totalMs: msOf(config.timeout_seconds),
  };
}

function connect(config: UpstreamConfig, authorities: string | null): Dispatcher {
  const secureContext = authorities === null ? null : secureContextOf(authorities);
  const tls = {
    lookup: lookupOnce,
    timeout: Math.min(config.connect_timeout_seconds, config.timeout_seconds) * 1000,
    // One connection carries one request: with HTTP/2 a single reset would break a hundred lines at once.
    allowH2: false,
    ...(secureContext === null ? {} : { secureContext }),
  };
  const limits = {
    // There is one connection more than slots: a request for the models must not wait behind lines.
    connections: config.max_concurrency + 1,
    // With 0 undici closes a connection after its first answer.
    pipelining: config.keep_alive ? 1 : 0,
    allowH2: false,
    keepAliveTimeout: KEEP_ALIVE_MS,
    // The timer of the attempt covers the whole answer.
    headersTimeout: 0,
    bodyTimeout: 0,
  };
  const connector = failingOnReset(readingAnswers(buildConnector(tls)));
  return config.proxy === undefined
    ? new Pool(new URL(config.base_url).origin, { ...limits, connect: connector })
    : connectThrough(new URL(config.proxy), { tls, limits });
}

interface ConnectionOptions {
  readonly tls: { readonly timeout: number };
  readonly limits: PoolOptions;
}

function connectThrough(proxy: URL, { tls, limits }: ConnectionOptions): Dispatcher {
  const isOpen = proxy.username === "" && proxy.password === "";
  const ProxyAgent = loadProxyAgent();
  return new ProxyAgent({
    uri: proxy.origin,
    ...(isOpen ? {} : { token: basicAuthorization(proxy) }),
    // The agent's own default opens a connection for each request, and waits minutes for an answer of the proxy.
    factory: (to, options: PoolOptions) => new Pool(to, { ...connecting(options), ...limits }),
    clientFactory: (to, options: PoolOptions) =>
      new Pool(to, { ...connecting(options), headersTimeout: tls.timeout }),
    allowH2: false,
    requestTls: tls,
    proxyTls: tls,
  });
}

/** The agent connects by functions of its own. */
const connecting = (options: PoolOptions): PoolOptions =>
  typeof options.connect === "function"
    ? { ...options, connect: failingOnReset(readingAnswers(options.connect)) }
    : options;

/**
 * Reads the file with the authorities; null without one. The file was there when the configuration was checked. If it has
 * gone since, the server is not trusted, and its lines wait as for any target that is down.
 */
export function authoritiesOf({ ca_file: path }: UpstreamConfig): string | null {
  if (path === undefined) return null;
  try {
    return readFileSync(path, "utf8");
  } catch {
    return null;
  }
}

/** Makes the context once, since it takes milliseconds; null trusts the authorities that Node trusts. */
function secureContextOf(authorities: string): SecureContext | null {
  try {
    return createSecureContext({ ca: [...getCACertificates("default"), authorities] });
  } catch {
    return null;
  }
}
