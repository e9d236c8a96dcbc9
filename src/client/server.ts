/** The server behind a command, through the official SDK, and what its refusals mean to the user. */
import { Console } from "node:console";
import type OpenAI from "openai";
import { APIConnectionError, APIError, APIUserAbortError } from "openai";
import type { ServerSettings } from "../config/client.ts";
import { truncate } from "../text/truncate.ts";
import { version } from "../version.ts";
import { shellWord } from "../words.ts";
import { boundedFetch, NotTheApi } from "./bounded-fetch.ts";
import { CommandFailure } from "./failure.ts";
import { InterruptibleClient } from "./interruptible-client.ts";
import { CLOSED, isAnswerLost, isBrokenOff, isTimedOut, reasonOf } from "./lost-answers.ts";
import { isOfBatchd, type ShownBatch } from "./shown-batch.ts";

/** The tries after the first one of a request. The SDK waits between them, and repeats 408, 409, 429 and 5xx. */
const MAX_RETRIES = 2;
/** An answer may take long to begin: an upload is checked, and a long poll waits. */
export const TIMEOUT_MS = 600_000;
/** A refusal of batchd is shorter. */
const MESSAGE_MAX_CHARACTERS = 2_000;

export class Server {
  readonly url: string;
  readonly openai: OpenAI;
  readonly #settings: ServerSettings;
  /** Whether a deletion may have been carried out by a request without an answer. */
  #mayHaveDeleted = false;

  /** All requests end when the signal aborts. */
  constructor(settings: ServerSettings, signal: AbortSignal) {
    this.#settings = settings;
    this.url = settings.url;
    this.openai = new InterruptibleClient(signal, {
      baseURL: settings.url,
      apiKey: settings.apiKey ?? "none",
      // The variables of OpenAI are for OpenAI alone.
      ...(settings.keyVariable !== "OPENAI_API_KEY" && { organization: null, project: null }),
      maxRetries: MAX_RETRIES,
      timeout: TIMEOUT_MS,
      fetch: (url, init) => this.#fetch(url, init),
      // What OPENAI_LOG asks for would stand among the results otherwise.
      logger: new Console(process.stderr),
      defaultHeaders: {
        "User-Agent": `batchd/${version}`,
        // The library wants a key. A server would call it a wrong one, and not a missing one.
        ...(settings.apiKey === null && { Authorization: null }),
      },
    });
  }

  /** Returns a command for the user to paste, which asks the same server. Each word is for the shell as it is. */
  command(...words: readonly string[]): string {
    const flag = this.#settings.isNamedByFlag ? ["--url", this.url] : [];
    return ["batchd", ...words, ...flag].map(shellWord).join(" ");
  }

  async #fetch(url: string | URL | Request, init?: RequestInit): Promise<Response> {
    const isDeletion = init?.method === "DELETE";
    try {
      const response = await boundedFetch(url, init);
      // A proxy says so of a server that died.
      if (isDeletion && response.status >= 500) this.#mayHaveDeleted = true;
      return response;
    } catch (error) {
      if (isDeletion && isAnswerLost(error)) this.#mayHaveDeleted = true;
      throw error;
    }
  }

  /** Deletes an object. The SDK asks again where an answer was lost, and then there may be nothing left to delete. */
  async delete(path: string, deleted: Deleted, query: Query = {}): Promise<unknown> {
    try {
      return await this.openai.delete<unknown>(path, { query });
    } catch (error) {
      if (this.#mayHaveDeleted && isGone(error)) return { ...deleted, deleted: true };
      throw error;
    }
  }

  batch(id: string, options: { signal?: AbortSignal; maxRetries?: number } = {}) {
    return this.openai.get<ShownBatch>(`/batches/${encodeURIComponent(id)}`, options);
  }

  /** Asks for one page of a list. */
  async page<T>(path: string, query: Query, signal?: AbortSignal): Promise<ListPage<T>> {
    const page = await this.openai.get<Partial<ListPage<T>>>(path, {
      query,
      ...(signal && { signal }),
    });
    const { data, has_more = false } = page;
    if (!Array.isArray(data)) throw new NotTheApi("JSON that is no list");
    return { data, has_more };
  }

  /** Yields the objects of a list, page by page. A server that does not know `after` sends its first page for ever. */
  async *list<T extends { readonly id: string }>(path: string, query: Query): AsyncGenerator<T> {
    const lasts = new Set<string>();
    for (let after: string | undefined; ; ) {
      const { data, has_more } = await this.page<T>(path, { ...query, ...(after && { after }) });
      after = data.at(-1)?.id;
      if (after !== undefined && lasts.has(after)) throw new CommandFailure(repeats(this.url));
      yield* data;
      if (!has_more || after === undefined) return;
      lasts.add(after);
    }
  }

  /**
   * Sends a request about a batch that only batchd understands. If another server refuses it, the error says so in
   * words: its 404 would read as if the batch were missing.
   */
  async extension<T>(what: string, id: string, send: (path: string) => PromiseLike<T>): Promise<T> {
    try {
      return await send(`/batches/${encodeURIComponent(id)}`);
    } catch (error) {
      if (!isUnknownRoute(error)) throw error;
      const batch = await this.batch(id).catch(() => null);
      throw batch !== null && !isOfBatchd(batch) ? this.lacks(what, error) : error;
    }
  }

  lacks(what: string, cause?: unknown): CommandFailure {
    return new CommandFailure(
      `${this.url} does not have ${what}: it is an extension of batchd, and this server is another one`,
      { cause },
    );
  }

  /** Returns a sentence for an error of a request, with what to do next; null for any other error. */
  explain(error: unknown): string | null {
    if (error instanceof CommandFailure) return error.message;
    if (error instanceof APIUserAbortError) return "interrupted";
    if (error instanceof SyntaxError)
      return this.explain(new NotTheApi("something that is not JSON"));
    if (error instanceof NotTheApi) {
      return `${this.url} answers with ${error.message}. Is it a server with OpenAI's API? --url or BATCHD_URL names another one`;
    }
    if (isTimedOut(error)) {
      return `${this.url} took the request and did not answer in time: the server, or a proxy before it, hangs`;
    }
    if (error instanceof APIConnectionError) {
      const reason = reasonOf(error);
      if (CLOSED.includes(reason))
        return `${this.url} closed the connection without an answer (${reason})`;
      return `cannot reach ${this.url} (${reason}). ${this.#adviceAway(reason)}`;
    }
    if (isBrokenOff(error)) return `${this.url} broke off its answer (${reasonOf(error)})`;
    if (!(error instanceof APIError)) return null;
    const elsewhere = isRedirect(error) ? error.headers?.get("location") : null;
    if (elsewhere) {
      return `${this.url} sends requests on to ${truncate(elsewhere)}. Name the address there with --url or BATCHD_URL`;
    }
    const advice = this.#adviceFor(error);
    return advice === null ? messageOf(error) : `${messageOf(error)} ${advice}`;
  }

  #adviceAway(reason: string): string {
    if (UNKNOWN_AUTHORITY.includes(reason))
      return "Its certificate is of an unknown authority: NODE_EXTRA_CA_CERTS names a PEM file with that one";
    if (NO_TLS.includes(reason))
      return `It answers without TLS: ${this.url.replace(/^https/, "http")} may be its address`;
    const { proxyVariable: proxy, usesProxies } = this.#settings;
    if (proxy === null) return "Is the server running? --url or BATCHD_URL names another one";
    return usesProxies
      ? `Are the server and the proxy in ${proxy} running? NO_PROXY names servers that need no proxy`
      : `The proxy in ${proxy} is used with NODE_USE_ENV_PROXY=1`;
  }

  #adviceFor(error: APIError): string | null {
    const { status } = error;
    const { keyVariable, apiKey } = this.#settings;
    switch (status) {
      case 401:
        return apiKey === null
          ? `(Set ${keyVariable} to a key of this server.)`
          : `(The key in ${keyVariable} is not one of this server.)`;
      case 403:
        return `(The key in ${keyVariable} may not do this.)`;
      case 404:
      case 405:
        return isMissingObject(error)
          ? `(At ${this.url}; batchd list and batchd files list show what is there.)`
          : `(At ${this.url}. Is it a server with OpenAI's Batch API? --url or BATCHD_URL names another one.)`;
      case 413:
        return error.error === undefined
          ? "(A proxy before the server takes no request of this size.)"
          : null;
      case 429:
        return error.code === "insufficient_quota"
          ? "(Make room, or ask for a higher quota.)"
          : "(Try again later.)";
      default:
        return status !== undefined && status >= 500
          ? "(Try again; the server's log says more.)"
          : null;
    }
  }
}

/** What OpenSSL says of an answer that is plain HTTP. */
const NO_TLS: readonly string[] = [
  "ERR_SSL_WRONG_VERSION_NUMBER",
  "ERR_SSL_PACKET_LENGTH_TOO_LONG",
];

/** What OpenSSL says of a certificate that no authority at hand has signed. */
const UNKNOWN_AUTHORITY: readonly string[] = [
  "DEPTH_ZERO_SELF_SIGNED_CERT",
  "SELF_SIGNED_CERT_IN_CHAIN",
  "UNABLE_TO_GET_ISSUER_CERT",
  "UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
  "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
];

type Query = Readonly<Record<string, string | number>>;

interface Deleted {
  readonly id: string;
  readonly object: "batch" | "file";
}

interface ListPage<T> {
  readonly data: readonly T[];
  readonly has_more: boolean;
}

const repeats = (url: string) =>
  `${url} sends the same page of its list again and again: it does not know the parameter 'after', so only the first page can be read`;

const isRedirect = ({ status }: APIError) => status !== undefined && status >= 300 && status < 400;

const isUnknownRoute = (error: unknown) =>
  error instanceof APIError && (error.status === 404 || error.status === 405);

/** Tells a batch or a file that is not there, in the words of OpenAI or Azure, from a model server that has no batches at all. */
const isMissingObject = ({ type, code, error }: APIError): boolean => {
  const { message } = (error ?? {}) as { message?: unknown };
  if (code === "404") return true;
  return type === "invalid_request_error" && !String(message).startsWith("Invalid URL ");
};

/** Returns whether the server says that what was asked for is not there. */
export const isGone = (error: unknown): boolean =>
  error instanceof APIError && error.status === 404 && isMissingObject(error);

/**
 * Returns the message of the server without the status, which the SDK puts in front of it. Many messages of OpenAI do not name
 * the field that they are about. A page in its place is shortened.
 */
function messageOf({ error, message, status, param }: APIError): string {
  const told = (error as { message?: unknown } | undefined)?.message;
  if (typeof told === "string" && told !== "") {
    const isField = status === 400 && typeof param === "string" && param !== "";
    const field = isField && !told.includes(param) ? `${truncate(param)}: ` : "";
    return truncate(`${field}${told}`, MESSAGE_MAX_CHARACTERS);
  }
  return truncate(message.replaceAll(/\s+/g, " ")) || `status ${status}`;
}

/** Returns whether the same request may succeed later: a server that starts again, or a network that comes back. */
export const isPassing = (error: unknown): boolean =>
  error instanceof APIConnectionError ||
  isBrokenOff(error) ||
  (error instanceof APIError &&
    error.status !== undefined &&
    (error.status >= 500 || [408, 425, 429].includes(error.status)));
