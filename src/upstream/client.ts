/**
 * HTTP to one target: one POST is one attempt, and its promise always resolves to an {@link Outcome}.
 *
 * This is the hot path, so it speaks undici's handler interface: per attempt one handler object, one timer
 * for the whole answer and one promise; headers are made once per target. Whatever ends an attempt first (the
 * answer, an error, the timer, an abort) settles it; whatever comes later is ignored.
 */
import { type Dispatcher, Pool } from "undici";
import type { Outcome } from "../batch/outcome.ts";
import type { Clock } from "../clock.ts";
import { version } from "../version.ts";
import { outcomeOf } from "./answer.ts";
import { describeFailure } from "./failure.ts";
import { type Interruptible, unwatch, watch } from "./watch.ts";

export interface ClientOptions {
  /** Up to and including `/v1`; a query stays, credentials become basic authentication. */
  readonly baseUrl: string;
  readonly apiKey: string | null;
  readonly maxConnections: number;
  /** For one whole answer. */
  readonly timeoutMs: number;
  readonly maxAnswerBytes: number;
  readonly clock: Clock;
}

const CONNECT_TIMEOUT_MS = 10_000;
/** Idle connections go before the 5 s after which uvicorn and Node close theirs, so none is used as it dies. */
const KEEP_ALIVE_MS = 4_000;

export interface Exchange {
  readonly method: "GET" | "POST";
  /** After the base: `/chat/completions`. */
  readonly path: string;
  readonly body: Buffer | null;
  /** Shorter than the client's own timeout, where it matters. */
  readonly timeoutMs?: number;
}

export class Client {
  readonly #pool: Pool;
  readonly #basePath: string;
  readonly #query: string;
  readonly #headers: readonly string[];
  readonly #options: ClientOptions;
  readonly #rules: AnswerRules;

  constructor(options: ClientOptions) {
    const url = new URL(options.baseUrl);
    this.#options = options;
    this.#basePath = url.pathname.replace(/\/+$/, "");
    this.#query = url.search;
    const authorization = authorizationOf(options.apiKey, url);
    const secrets = [options.apiKey, decodeURIComponent(url.password), authorization].filter(
      (secret): secret is string => secret !== null && secret !== "",
    );
    this.#rules = { clock: options.clock, maxAnswerBytes: options.maxAnswerBytes, secrets };
    this.#headers = [
      ...["content-type", "application/json", "accept", "application/json"],
      // Bodies pass through as bytes, so they must come as they are.
      ...["accept-encoding", "identity", "user-agent", `batchd/${version}`],
      ...(authorization === null ? [] : ["authorization", authorization]),
    ];
    this.#pool = new Pool(url.origin, {
      // One more than lines can take: a question for the models must not wait behind them.
      connections: options.maxConnections + 1,
      pipelining: 1,
      // One connection, one line: with HTTP/2 a single reset would break a hundred lines at once.
      allowH2: false,
      connect: { timeout: Math.min(CONNECT_TIMEOUT_MS, options.timeoutMs) },
      keepAliveTimeout: KEEP_ALIVE_MS,
      // The attempt's own timer covers the whole answer.
      headersTimeout: 0,
      bodyTimeout: 0,
    });
  }

  /** Resolves to `interrupted` when `abort` aborts, or when the client is closed. */
  send(exchange: Exchange, abort: AbortSignal): Promise<Outcome> {
    if (abort.aborted) return Promise.resolve({ kind: "interrupted" });
    const timeoutMs = exchange.timeoutMs ?? this.#options.timeoutMs;
    return new Promise((resolve) => {
      const attempt = new Attempt(this.#rules, { timeoutMs, abort, resolve });
      this.#pool.dispatch(
        {
          method: exchange.method,
          path: `${this.#basePath}${exchange.path}${this.#query}`,
          headers: this.#headers as string[],
          body: exchange.body,
        },
        attempt,
      );
    });
  }

  /** Ends what is under way, as interrupted. */
  async close(): Promise<void> {
    await this.#pool.destroy();
  }
}

function authorizationOf(apiKey: string | null, url: URL): string | null {
  if (apiKey !== null) return `Bearer ${apiKey}`;
  if (url.username === "" && url.password === "") return null;
  const pair = `${decodeURIComponent(url.username)}:${decodeURIComponent(url.password)}`;
  return `Basic ${Buffer.from(pair).toString("base64")}`;
}

/** The same for every attempt at a target. */
interface AnswerRules {
  readonly clock: Clock;
  readonly maxAnswerBytes: number;
  /** What no detail may show. */
  readonly secrets: readonly string[];
}

interface AttemptOptions {
  readonly timeoutMs: number;
  readonly abort: AbortSignal;
  readonly resolve: (outcome: Outcome) => void;
}

class Attempt implements Dispatcher.DispatchHandler, Interruptible {
  readonly #rules: AnswerRules;
  readonly #options: AttemptOptions;
  readonly #timer: NodeJS.Timeout;
  #isSettled = false;
  /** Null until a connection takes the request. */
  #controller: Dispatcher.DispatchController | null = null;
  #status = 0;
  #headers: Record<string, string | string[] | undefined> = {};
  #chunks: Buffer[] = [];
  #bodyBytes = 0;

  constructor(rules: AnswerRules, options: AttemptOptions) {
    this.#rules = rules;
    this.#options = options;
    this.#timer = setTimeout(expire, options.timeoutMs, this);
    watch(options.abort, this);
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller;
    // It was given up while it waited for a connection.
    if (this.#isSettled) controller.abort(ABANDONED);
  }

  /** Informational answers (1xx) come through here too; the final one comes last. */
  onResponseStart(
    _controller: Dispatcher.DispatchController,
    status: number,
    headers: Record<string, string | string[] | undefined>,
  ): void {
    this.#status = status;
    this.#headers = headers;
  }

  onResponseData(_controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.#isSettled) return;
    this.#bodyBytes += chunk.length;
    if (this.#bodyBytes <= this.#rules.maxAnswerBytes) {
      this.#chunks.push(chunk);
      return;
    }
    const detail = `an answer longer than ${this.#rules.maxAnswerBytes} bytes`;
    this.#drop({ kind: "broken", detail });
  }

  onResponseEnd(): void {
    if (this.#isSettled) return;
    const chunks = this.#chunks;
    const body = chunks.length === 1 ? (chunks[0] as Buffer) : Buffer.concat(chunks);
    const answer = { status: this.#status, headers: this.#headers, body };
    this.#settle(this.#redact(outcomeOf(answer, this.#rules.clock.nowMs())));
  }

  /** Without a connection there was no request start: the target never saw the line. */
  onResponseError(_controller: Dispatcher.DispatchController | null, error: Error): void {
    if (this.#isSettled) return;
    const { code } = error as NodeJS.ErrnoException;
    if (code === "UND_ERR_DESTROYED" || code === "UND_ERR_CLOSED") {
      this.#settle({ kind: "interrupted" });
      return;
    }
    const kind = this.#controller === null ? "unreachable" : "broken";
    this.#settle(this.#redact({ kind, detail: describeFailure(error) }));
  }

  expire(): void {
    const { timeoutMs } = this.#options;
    this.#drop(
      this.#controller === null
        ? { kind: "unreachable", detail: "no connection in time" }
        : { kind: "timed_out", afterMs: timeoutMs },
    );
  }

  interrupt(): void {
    this.#drop({ kind: "interrupted" });
  }

  /** Settles an attempt whose answer is not complete: its connection is of no more use. */
  #drop(outcome: Outcome): void {
    if (this.#isSettled) return;
    this.#settle(outcome);
    this.#controller?.abort(ABANDONED);
  }

  #settle(outcome: Outcome): void {
    this.#isSettled = true;
    this.#chunks = [];
    clearTimeout(this.#timer);
    unwatch(this.#options.abort, this);
    this.#options.resolve(outcome);
  }

  /** A server may echo what it was sent; a detail is read by clients. */
  #redact(outcome: Outcome): Outcome {
    if (outcome.kind !== "broken" && outcome.kind !== "unreachable") return outcome;
    const redacted = (text: string, secret: string) => text.replaceAll(secret, "[redacted]");
    return { kind: outcome.kind, detail: this.#rules.secrets.reduce(redacted, outcome.detail) };
  }
}

const ABANDONED = new Error("the attempt was given up");

const expire = (attempt: Attempt) => attempt.expire();
