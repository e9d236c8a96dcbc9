/**
 * Turns a request into an HTTP exchange with one target: its path, its headers, its body. There are two dialects. An
 * OpenAI-style target takes the endpoint below its base address. An Azure resource has a path for each deployment,
 * which is its word for a model. It gets its key in a header of its own, and has no list of its models. Parts that do
 * not differ between requests are made once for each target.
 */
import { BodyRewriting, type BodyRules, type FieldTexts, isRewritten } from "../../batch/body.ts";
import {
  type AllowedAnswer,
  allowedByFields,
  answerTokensWith,
} from "../../batch/token-estimate.ts";
import { basicPairOf, upstreamSecrets } from "../../config/secrets.ts";
import type { UpstreamConfig } from "../../config/upstreams.ts";
import { MAX_MODEL_BYTES } from "../../contract/create-batch.ts";
import { Redactor } from "../../redactor.ts";
import { read } from "../../resources/time-slice.ts";
import { version } from "../../version.ts";
import type { AnswerRoom, UpstreamRequest } from "../request.ts";

export interface Exchange {
  readonly method: "GET" | "POST";
  /** The path from the first slash on, with its query. */
  readonly path: string;
  /** Names and values in turn. */
  readonly headers: readonly string[];
  readonly body: Buffer | null;
  readonly room?: AnswerRoom | undefined;
  /** A limit shorter than the target's own timeouts, where it matters. */
  readonly timeoutMs?: number;
  /** A limit smaller than the one for all answers. */
  readonly maxAnswerBytes?: number;
}

/** Azure serves these below a deployment, and all others beside the deployments. */
const DEPLOYMENT_PATHS = new Set([
  "/chat/completions",
  "/completions",
  "/embeddings",
  "/images/generations",
  "/images/edits",
]);
/** A version without a date, such as `preview`, belongs to the API that names the deployment in the body alone. */
const DATED_VERSION = /^\d{4}-\d{2}-\d{2}/;

export class Dialect {
  /** The path of the list of models; null when the target has none. */
  readonly modelListPath: string | null;
  /** The headers of every exchange. */
  readonly headers: readonly string[];
  /** Redacts secrets that the target may echo and clients must not read. */
  readonly redactor: Redactor;
  readonly #pathOf: (path: string, model: string) => string;
  /** Whether the model is a segment of this path. */
  readonly #namesModelIn: (path: string) => boolean;
  readonly #defaults: FieldTexts;
  readonly #extra: FieldTexts;
  /** What the fields that the configuration sets allow for an answer. */
  readonly #allowed: { readonly forced: AllowedAnswer; readonly defaults: AllowedAnswer };

  constructor(config: UpstreamConfig) {
    const url = new URL(config.base_url);
    this.headers = headersOf(config, url).flat();
    this.redactor = new Redactor(upstreamSecrets(config));
    const isAzure = config.azure !== undefined;
    this.#pathOf =
      config.azure === undefined ? openAiPaths(url) : azurePaths(url, config.azure.api_version);
    const isDated = DATED_VERSION.test(config.azure?.api_version ?? "");
    this.#namesModelIn = (path) => isAzure && isDated && DEPLOYMENT_PATHS.has(path);
    this.modelListPath = config.azure === undefined ? this.#pathOf("/models", "") : null;
    this.#defaults = textsOf(config.defaults);
    this.#extra = textsOf(config.extra_body);
    this.#allowed = {
      forced: allowedByFields(config.extra_body),
      defaults: allowedByFields(config.defaults),
    };
  }

  /** Returns the estimate of an answer, with the fields that the configuration sets. */
  answerTokensOf(allowed: AllowedAnswer): number {
    return answerTokensWith(allowed, this.#allowed);
  }

  /** Whether a request for this model has a path at all. The target cannot have a model that no path can name. */
  canName(
    { endpoint, model }: Pick<UpstreamRequest, "endpoint" | "model">,
    upstreamModel: string | null,
  ) {
    return !this.#namesModelIn(endpoint.slice("/v1".length)) || isSegment(upstreamModel ?? model);
  }

  /**
   * Makes the exchange. `upstreamModel` is the target's name for the model; null when it uses the public name. Only a
   * long body makes a promise.
   */
  exchangeOf(request: UpstreamRequest, upstreamModel: string | null): Exchange | Promise<Exchange> {
    const { endpoint, model, traceparent } = request;
    const body = rewritten(request.body, {
      model: upstreamModel ?? (request.isModelInBody ? null : model),
      defaults: this.#defaults,
      extra: this.#extra,
    });
    const exchange = {
      method: "POST",
      room: request.room,
      path: this.#pathOf(endpoint.slice("/v1".length), upstreamModel ?? model),
      headers: traceparent === null ? this.headers : [...this.headers, "traceparent", traceparent],
    } as const;
    return body instanceof Promise
      ? body.then((whole) => ({ ...exchange, body: whole }))
      : { ...exchange, body };
  }
}

/**
 * Whether a server takes the name for one segment. Servers read `.` and `..` as steps, also between encoded slashes,
 * and reject half of a character.
 */
function isSegment(name: string): boolean {
  if (name === "" || !name.isWellFormed() || CONTROL.test(name)) return false;
  if (Buffer.byteLength(name) > MAX_MODEL_BYTES) return false;
  return name.split(/[/\\]/).every((part) => !STEP.test(part));
}

const CONTROL = /\p{Cc}/u;
/** The pattern also matches steps with percent signs, which a server may decode a second time. */
const STEP = /^(?:\.|%2e){1,2}$/i;

const rewritten = (body: Buffer, rules: BodyRules): Buffer | Promise<Buffer> =>
  isRewritten(rules) ? read(new BodyRewriting(rules), body) : body;

const basePath = (url: URL) => url.pathname.replace(/\/+$/, "");

function openAiPaths(url: URL): (path: string) => string {
  const base = basePath(url);
  return (path) => `${base}${path}${url.search}`;
}

function azurePaths(url: URL, apiVersion: string): (path: string, deployment: string) => string {
  const base = `${basePath(url).replace(/\/openai$/, "")}/openai`;
  const rest = url.search === "" ? "" : `&${url.search.slice(1)}`;
  const query = `?api-version=${encodeURIComponent(apiVersion)}${rest}`;
  if (!DATED_VERSION.test(apiVersion)) return (path) => `${base}/v1${path}${query}`;
  return (path, deployment) =>
    DEPLOYMENT_PATHS.has(path)
      ? `${base}/deployments/${encodeURIComponent(deployment)}${path}${query}`
      : `${base}${path}${query}`;
}

type Header = readonly [name: string, value: string];

function headersOf(config: UpstreamConfig, url: URL): Header[] {
  const ours: Header[] = [
    ["content-type", "application/json"],
    ["accept", "application/json"],
    // Bodies pass through as bytes, so the server must not compress them.
    ["accept-encoding", "identity"],
    ["user-agent", `batchd/${version}`],
    ...credentialsOf(config, url),
  ];
  const configured = new Map(
    Object.entries(config.headers).map(([name, value]) => [name.toLowerCase(), value]),
  );
  return [...ours.filter(([name]) => !configured.has(name)), ...configured];
}

function credentialsOf({ api_key: key, azure }: UpstreamConfig, url: URL): Header[] {
  if (key !== undefined) {
    return azure === undefined ? [["authorization", `Bearer ${key}`]] : [["api-key", key]];
  }
  const { username, password } = url;
  return username === "" && password === ""
    ? []
    : [["authorization", basicAuthorization({ username, password })]];
}

export const basicAuthorization = (url: Pick<URL, "username" | "password">): string =>
  `Basic ${basicPairOf(url)}`;

const textsOf = (fields: UpstreamConfig["defaults"]): FieldTexts =>
  new Map(Object.entries(fields).map(([name, value]) => [name, JSON.stringify(value)]));
