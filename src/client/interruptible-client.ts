/** The official SDK, with a signal that ends all requests, and less patience for those that are soon answered. */
import OpenAI, { type ClientOptions } from "openai";
import type { APIPromise } from "openai/core/api-promise";
import { assertOfApi } from "./answer.ts";

/** What {@link isShort} has an answer soon. Without one the connection may be a dead one, and the next try has another. */
const SHORT_TIMEOUT_MS = 30_000;

interface RequestLimits {
  readonly method: string;
  readonly path: string;
  /** Whether the content of a file is asked for. A server may fetch all of it from another one before it begins to answer. */
  readonly __binaryResponse?: boolean | undefined;
  signal?: AbortSignal | null | undefined;
  timeout?: number;
}

/** A change of a batch that is there: its budget, or one of these calls. */
const CHANGE = /^\/batches\/[^/]+(?:\/(?:cancel|pause|resume))?$/;

/** Returns whether a request only looks, or changes or deletes one object. Each may be sent twice. */
const isShort = ({ method, path, __binaryResponse: isContent }: RequestLimits) =>
  method === "get" ? isContent !== true : method === "delete" || CHANGE.test(path);

export class InterruptibleClient extends OpenAI {
  readonly #signal: AbortSignal;

  constructor(signal: AbortSignal, options: ClientOptions) {
    super(options);
    this.#signal = signal;
  }

  /** The SDK hands on whatever a server answers: a page as a text, and JSON of any shape. */
  override request<T>(...args: Parameters<OpenAI["request"]>): APIPromise<T> {
    return super.request<T>(...args)._thenUnwrap((answer, { response, options }) => {
      assertOfApi(answer, options, response.headers);
      return answer;
    });
  }

  /** The SDK calls this before each request. */
  protected override async prepareOptions(options: RequestLimits) {
    options.signal ??= this.#signal;
    if (isShort(options)) options.timeout ??= SHORT_TIMEOUT_MS;
  }

  /** A request that is sent on becomes a GET, and loses its key at another origin. A bucket may have the content of a file. */
  protected override async prepareRequest(request: RequestInit, { url }: { url: string }) {
    if (!url.endsWith("/content")) request.redirect = "manual";
  }
}
