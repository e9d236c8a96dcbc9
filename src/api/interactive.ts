/**
 * Answers interactive requests while the client waits. They have the routes of batch lines and go ahead of them, and
 * the answer passes through byte by byte. Nothing may be stored. A client that disconnects ends its request.
 */
import { finished } from "node:stream";
import { BodyModelReading } from "../batch/body-model.ts";
import { secondModel } from "../batch/line-check.ts";
import { allowsModel, type RulesOf } from "../batch/project.ts";
import type { Clock } from "../clock.ts";
import type { BatchEndpoint } from "../contract/batch.ts";
import { MAX_MODEL_BYTES } from "../contract/create-batch.ts";
import { jsonBodyError, PublicError } from "../errors.ts";
import { read } from "../resources/time-slice.ts";
import { type Ending, endedByError, type Origin, type Tracing } from "../telemetry/tracing.ts";
import { decodeStart, decodeString, type Extent, isSame, isStringAt } from "../text/json.ts";
import { kindAt } from "../text/json-kind.ts";
import { truncate } from "../text/truncate.ts";
import type { Proxied, ProxyResult, UpstreamRequest } from "../upstream/request.ts";
import type { Route, Upstreams } from "../upstream/upstream.ts";
import type { InteractiveSlots } from "./interactive-slots.ts";

/** The endpoints whose answers a client may wait for. */
export const INTERACTIVE_ENDPOINTS = [
  "/v1/chat/completions",
  "/v1/completions",
  "/v1/embeddings",
  "/v1/responses",
  "/v1/moderations",
] as const satisfies readonly BatchEndpoint[];
export type InteractiveEndpoint = (typeof INTERACTIVE_ENDPOINTS)[number];

export interface InteractiveRequest {
  readonly project: string;
  readonly endpoint: InteractiveEndpoint;
  readonly body: Buffer;
  /** The deployment in the path, for a body that names no model. */
  readonly deployment: string | null;
  readonly origin: Origin;
}

export interface InteractiveDeps {
  readonly upstreams: Pick<Upstreams, "findRoute">;
  readonly clock: Clock;
  readonly tracing: Tracing;
  /** Returns the model for requests that name none; null without one. */
  readonly defaultModel: () => string | null;
  readonly rulesOf: RulesOf;
  readonly slots: Pick<InteractiveSlots, "take">;
}

/** The answer in progress; `disconnected` when the client disconnected before it began. */
export type InteractiveAnswer = Proxied | { readonly kind: "disconnected" };

/** The longest wait for the beginning of an answer. A client that waits for less disconnects earlier. */
const WINDOW_MS = 6 * 60 * 60 * 1000;

export class Interactive {
  readonly #deps: InteractiveDeps;

  constructor(deps: InteractiveDeps) {
    this.#deps = deps;
  }

  /** Answers a request. `disconnected` aborts when the client has disconnected, which ends the request at once. */
  async answer(request: InteractiveRequest, disconnected: AbortSignal): Promise<InteractiveAnswer> {
    const { upstreams, defaultModel, rulesOf } = this.#deps;
    const found = await read(new BodyModelReading(), request.body);
    if (!found.ok) throw jsonBodyError(request.body);
    if (found.otherModel !== null) {
      const param = decodeString(request.body, found.otherModel);
      const code = param === "model" ? "invalid_value" : "unknown_parameter";
      throw new PublicError(code, secondModel(param, "model"), { param });
    }
    const named = modelNamedIn(request.body, found.model);
    const model = named ?? request.deployment ?? defaultModel();
    if (model === null) {
      throw new PublicError("invalid_request", "you must provide a model parameter");
    }
    if (!allowsModel(rulesOf(request.project), model)) {
      throw modelNotAllowed(request.project, model);
    }
    // Replicas report the models that a target refuses to each other, again and again.
    const isName = Buffer.byteLength(model) <= MAX_MODEL_BYTES;
    const route = isName ? upstreams.findRoute(model) : null;
    if (route === null) {
      throw modelNotFound(model);
    }
    const end = await this.#deps.slots.take(request.project);
    const { inputTokens, answerTokens } = found;
    const tokens = { inputTokens, answerTokens };
    const resolved = { ...request, model, isModelInBody: named !== null, ...tokens };
    const result = await this.#proxy(route, resolved, disconnected).catch((cause: unknown) => {
      end();
      throw cause;
    });
    if (result.kind === "proxied") {
      finished(result.body, end);
      return result;
    }
    end();
    if (disconnected.aborted) return { kind: "disconnected" };
    throw failureOf(result, model);
  }

  /** Proxies the request in a span that ends with the last byte. */
  async #proxy(
    route: Route,
    { origin, deployment: _, ...resolved }: Resolved,
    disconnected: AbortSignal,
  ): Promise<ProxyResult> {
    const { clock, tracing } = this.#deps;
    const span = tracing.start("interactive.request", {
      parent: origin.traceparent,
      kind: "server",
      attributes: {
        "batchd.endpoint": resolved.endpoint,
        "batchd.request.id": origin.requestId,
        "gen_ai.request.model": resolved.model,
      },
    });
    const traceparent = span.traceparent ?? origin.traceparent;
    const deadlineAtMs = clock.nowMs() + WINDOW_MS;
    const request = { ...resolved, deadlineAtMs, traceparent };
    const proxied = await endedByError(span, () => route.proxy(request, disconnected));
    const result = withoutChallenge(proxied);
    if (result.kind !== "proxied")
      span.end({ problem: disconnected.aborted ? CLIENT_DISCONNECTED : result.kind });
    else finished(result.body, (error) => span.end(endingOf(result, { error, disconnected })));
    return result;
  }
}

/** A request with its model. */
type Resolved = InteractiveRequest &
  Pick<UpstreamRequest, "model" | "isModelInBody" | "inputTokens" | "answerTokens">;

const CLIENT_DISCONNECTED = "client_disconnected";

function endingOf(
  { status }: Proxied,
  {
    error,
    disconnected,
  }: { readonly error: Error | null | undefined; readonly disconnected: AbortSignal },
): Ending {
  const attributes = { "http.response.status_code": status };
  if (disconnected.aborted) return { attributes, problem: CLIENT_DISCONNECTED };
  if (error) return { attributes, problem: "broken" };
  return { attributes, problem: status >= 400 ? String(status) : null };
}

const UNAUTHORIZED = 401;

/**
 * Replaces a 401. One that comes this far names the model, which the operator's key may not use. To a client it would say
 * that its own key is wrong.
 */
function withoutChallenge(result: ProxyResult): ProxyResult {
  if (result.kind !== "proxied" || result.status !== UNAUTHORIZED) return result;
  result.body.destroy();
  const about = { reason: "credentials", status: UNAUTHORIZED, requestId: null } as const;
  return { kind: "refused", ...about, detail: "status 401 for this model", said: "", body: null };
}

const modelNotAllowed = (project: string, model: string) =>
  new PublicError(
    "model_not_allowed",
    `Project \`${project}\` does not have access to model \`${truncate(model)}\``,
  );

const modelNotFound = (model: string) =>
  new PublicError(
    "model_not_found",
    `The model \`${truncate(model)}\` does not exist or you do not have access to it.`,
  );

function failureOf(result: Exclude<ProxyResult, Proxied>, model: string): PublicError {
  switch (result.kind) {
    case "unavailable":
      return new PublicError(
        "model_unavailable",
        `The model \`${truncate(model)}\` is overloaded or cannot be reached at the moment. Please try again later.`,
        { retryAfterMs: result.retryAfterMs },
      );
    case "unknown_model":
      return modelNotFound(model);
    case "unreachable":
      return new PublicError(
        "upstream_unreachable",
        `The model server could not be reached: ${result.detail}.`,
      );
    case "refused":
      return new PublicError(
        "upstream_refused",
        `The model server refused the request: ${result.detail}.`,
      );
    case "broken":
      return new PublicError(
        "upstream_error",
        `The model server gave no usable answer: ${result.detail}.`,
      );
    case "timed_out":
      return new PublicError(
        "upstream_timeout",
        `The model did not answer within ${result.afterMs / 1000} seconds.`,
      );
    case "interrupted":
      return new PublicError("unavailable", "The server is stopping. Please try again.");
  }
}

const NULL = Buffer.from("null");
/** The longest spelling of a model to decode. Every name is shorter. */
const MAX_TEXT_BYTES = 16 * 1024;

/** Returns null for a model that is missing, null or empty. */
function modelNamedIn(body: Buffer, model: Extent | null): string | null {
  if (model === null) return null;
  if (isStringAt(body, model.start)) return decodeStart(body, model, MAX_TEXT_BYTES) || null;
  if (isSame(body, model.start, model.end, NULL)) return null;
  throw new PublicError(
    "invalid_type",
    `Invalid type for 'model': expected a string, but got ${kindAt(body, model)} instead.`,
    { param: "model" },
  );
}
