import { createHash } from "node:crypto";
import { finished } from "node:stream";
import { NO_USAGE } from "../batch/batch.ts";
import type { Outcome, Refused } from "../batch/outcome.ts";
import type { SlotNeed } from "../batch/slot-share.ts";
import { truncate } from "../batch/truncate.ts";
import type { UpstreamConfig } from "../config/upstreams.ts";
import type { Span } from "../telemetry/tracing.ts";
import { Capacity, type CapacityOptions } from "./capacity/capacity.ts";
import type { Limiter } from "./capacity/limiter.ts";
import { isOverload, retryAfterMs } from "./exchange/answer.ts";
import type { Attempted } from "./exchange/attempt.ts";
import { Client } from "./exchange/client.ts";
import { Dialect } from "./exchange/dialect.ts";
import type { Unproxied } from "./exchange/proxied-answer.ts";
import { rateLimitHints } from "./exchange/rate-limits.ts";
import {
  circuitsOf,
  datesOf,
  followKinds,
  followTarget,
  type OwnedReport,
} from "./followed-circuits.ts";
import { Holds } from "./holds.ts";
import { ModelList, mayServe } from "./model-list.ts";
import { ANY_MODEL, upstreamNames } from "./router.ts";
import type { Slot } from "./slot.ts";
import { TargetLog } from "./target-log.ts";
import { TargetTelemetry, type TargetTelemetryOptions } from "./target-telemetry.ts";
import { unavailabilityOf } from "./unavailability.ts";
import type {
  ModelListing,
  Proxied,
  ProxyResult,
  RequestKind,
  TargetReport,
  TargetStatus,
  Unavailability,
  UpstreamRequest,
} from "./upstream.ts";

const MODEL_LIST_TIMEOUT_MS = 2_000;
/** The list is read as one value, which blocks the event loop. The longest list known has some 600 kB. */
const MODEL_LIST_MAX_BYTES = 2 * 1024 * 1024;
/** The number of listed models that other replicas learn of. */
const MAX_REPORTED_MODELS = 200;
const NEVER = new AbortController().signal;
const INTERRUPTED: Attempted = { outcome: { kind: "interrupted" }, hints: null };
const NOTHING = Buffer.alloc(0);

export interface TargetOptions extends CapacityOptions, TargetTelemetryOptions {
  readonly maxAnswerBytes: () => number;
}

/** An attempt that has ended. */
interface Settled {
  readonly request: UpstreamRequest;
  readonly startedAtMs: number;
  readonly attempted: Attempted;
}

/** One upstream endpoint: how to send requests to it, how much it can take, and its condition. */
export class Target {
  readonly name: string;
  readonly capacity: Capacity;
  readonly holds: Holds;
  readonly telemetry: TargetTelemetry;
  /** The models that the target lists. */
  readonly models: ModelList;
  readonly #log: TargetLog;
  readonly #options: TargetOptions;
  #config: UpstreamConfig;
  #dialect: Dialect;
  #client: Client;
  #names: ReadonlyMap<string, string | null>;
  /** The upstream names of models that are not listed any more. */
  #formerNames: ReadonlyMap<string, string | null> = new Map();
  /** The former clients, on which requests are ending. */
  readonly #draining = new Set<Client>();

  constructor(config: UpstreamConfig, options: TargetOptions) {
    this.name = config.name;
    this.#options = options;
    this.#config = config;
    this.capacity = new Capacity(config, options);
    this.holds = new Holds();
    this.#log = new TargetLog(config.name, options);
    this.telemetry = new TargetTelemetry(config.name, options);
    this.models = new ModelList({
      ...options,
      name: config.name,
      ask: () => this.#askForModels(),
    });
    this.#names = upstreamNames(config.models);
    this.#dialect = new Dialect(config);
    this.#client = this.#newClient();
  }

  get limiter(): Limiter {
    return this.capacity.limiter;
  }

  get priority(): number {
    return this.#config.priority;
  }

  get weight(): number {
    return this.#config.weight;
  }

  get servesAnyModel(): boolean {
    return this.#names.has(ANY_MODEL);
  }

  /** Whether a line that has a choice should come here. */
  isFit(kind: RequestKind, nowMs: number): boolean {
    if (!this.isOpenToLines(nowMs) || this.holds.readyAtMs(kind) > nowMs) return false;
    return this.capacity.backoffUntilMs <= nowMs && this.holds.backoffUntilMs(kind) <= nowMs;
  }

  /** Whether the target takes lines now, even if it is full at the moment. */
  isOpenToLines(nowMs: number): boolean {
    return this.limiter.batchLimit > 0 && this.capacity.isOpen(nowMs);
  }

  /** Returns null while the target takes lines of this project and model, even if it is full at the moment. */
  unavailabilityFor(kind: Pick<RequestKind, "project" | "model">): Unavailability | null {
    return this.#unavailability(this.holds.heldAnywhere(kind));
  }

  #unavailability(held: Refused | null): Unavailability | null {
    if (this.capacity.isElsewhere) return { reason: "no_room", upstreamError: null };
    if (this.limiter.batchLimit === 0) return { reason: "outside_hours", upstreamError: null };
    const failure = held ?? this.capacity.failure;
    return failure === null ? null : unavailabilityOf(failure);
  }

  /** Describes the target for the other replicas. */
  report(dateMs: number): TargetReport {
    const { clock } = this.#options;
    const dates = datesOf(clock, dateMs);
    const { max_concurrency: maxConcurrency, schedule = null } = this.#config;
    const opensInMs = this.capacity.opensAtMs - clock.nowMs();
    return {
      ...{ name: this.name, models: [...this.#names.keys()], maxConcurrency, schedule },
      listed: this.servesAnyModel ? this.models.latestIds.slice(0, MAX_REPORTED_MODELS) : [],
      settings: hashOf(this.#config),
      opensInMs: Number.isFinite(opensInMs) ? opensInMs : null,
      unavailability: this.#unavailability(null),
      ...circuitsOf(this, dates),
      held: this.holds.list().map(({ kind: { project, model }, refused }) => ({
        ...{ project, model },
        unavailability: unavailabilityOf(refused),
      })),
    };
  }

  /** Holds requests of circuits that other replicas have opened, or probes for them. */
  followCircuits(reports: readonly OwnedReport[], self: { owner: string; nowMs: number }): void {
    const dates = datesOf(this.#options.clock, self.nowMs);
    if (followTarget(this, reports, { ...self, dates })) this.capacity.followedCircuit();
    if (followKinds(this, reports, { ...self, dates })) this.holds.followedCircuits();
  }

  get status(): TargetStatus {
    const { limit, inFlight, waitingCount } = this.limiter;
    const isHeld = this.capacity.circuit === "closed" && this.holds.isAnyOpen;
    const circuit = isHeld ? "open" : this.capacity.circuit;
    return { name: this.name, limit, inFlight: { ...inFlight }, waiting: waitingCount, circuit };
  }

  /** What it has work for, while it shares the limits of the target with other replicas. */
  get need(): SlotNeed {
    const { totalInFlight: inFlight, waitingCount } = this.limiter;
    const limit = this.#config.max_concurrency;
    // A target that lines wait for could use all there is: it may lack slots, or its part of a rate.
    const wanted = waitingCount > 0 ? limit : Math.max(1, inFlight);
    const held = Math.max(inFlight, Math.min(limit, this.capacity.slotCount));
    return { target: this.name, limit, wanted, held };
  }

  /**
   * Takes another configuration from now on. Requests in flight end as they began. A line on its way to a model that
   * is no longer listed goes out under the model's former name.
   */
  reconfigure(config: UpstreamConfig): void {
    const former = this.#client;
    this.#config = config;
    this.#formerNames = new Map([...this.#formerNames, ...this.#names]);
    this.#names = upstreamNames(config.models);
    this.#dialect = new Dialect(config);
    this.#client = this.#newClient();
    this.capacity.reconfigure(config);
    this.models.forget();
    this.releaseHolds();
    this.#drain(former);
  }

  /** Tries again at once what the target refused: the operator may have mended the cause on either side. */
  releaseHolds(): void {
    this.holds.release();
    this.#log.forget();
  }

  /** Gives an unused slot back. */
  decline(slot: Slot<Target>): void {
    this.capacity.settle(slot, this.#options.clock.elapsedMs(), INTERRUPTED);
    slot.release();
  }

  /** Makes one attempt, learns from it and gives the slot back. Never rejects. */
  async send(slot: Slot<Target>, request: UpstreamRequest, abort: AbortSignal): Promise<Outcome> {
    const { clock } = this.#options;
    const startedAtMs = clock.elapsedMs();
    let attempted = INTERRUPTED;
    try {
      if (!this.#canName(request)) return unknownModel(request.model);
      // The wait for the slot may have outlasted the window.
      if (clock.nowMs() < request.deadlineAtMs) {
        const span = this.telemetry.startAttempt(request);
        const exchange = this.#exchangeOf(request, span);
        const ready = exchange instanceof Promise ? await exchange : exchange;
        attempted = await this.#client.send(ready, abort);
        this.telemetry.endAttempt(span, attempted.outcome, clock.elapsedMs() - startedAtMs);
      }
      return attempted.outcome;
    } finally {
      this.#settle(slot, { request, startedAtMs, attempted });
      slot.release();
    }
  }

  /** Sends an interactive request. The slot is given back when the last byte has been read. */
  async proxy(
    slot: Slot<Target>,
    request: UpstreamRequest,
    abort: AbortSignal,
  ): Promise<ProxyResult> {
    const { clock } = this.#options;
    const startedAtMs = clock.elapsedMs();
    let attempted = INTERRUPTED;
    let answer: ProxyResult | null = null;
    try {
      if (!this.#canName(request)) return { kind: "unknown_model" };
      const span = this.telemetry.startAttempt(request);
      const end = (outcome: Outcome) =>
        this.telemetry.endAttempt(span, outcome, clock.elapsedMs() - startedAtMs);
      answer = await this.#client.proxy(await this.#exchangeOf(request, span), abort);
      attempted = beginningOf(answer, clock.nowMs());
      if (answer.kind === "proxied") {
        const { body } = answer;
        finished(body, () => {
          slot.release();
          end(body.readableEnded ? attempted.outcome : cutShort(abort));
        });
      } else end(answer);
      return answer;
    } finally {
      this.#settle(slot, { request, startedAtMs, attempted });
      // The head of the answer may free other requests, long before the last byte comes.
      if (answer?.kind === "proxied") this.limiter.recheck();
      else slot.release();
    }
  }

  /** Whether a model must be on the target's list to be asked for. */
  get checksModels(): boolean {
    return this.#config.check_models;
  }

  /** Whether a target with this list may have a model of a public name. */
  mayServe(model: string, listing: ModelListing): boolean {
    return mayServe(listing, this.#nameOf(model) ?? model);
  }

  async #askForModels(): Promise<Outcome | null> {
    const path = this.#dialect.modelListPath;
    if (path === null) return null;
    const { headers } = this.#dialect;
    const limits = { timeoutMs: MODEL_LIST_TIMEOUT_MS, maxAnswerBytes: MODEL_LIST_MAX_BYTES };
    const exchange = { method: "GET", path, headers, body: null, ...limits } as const;
    return (await this.#client.send(exchange, NEVER)).outcome;
  }

  /** Takes nothing new; requests in flight may end. */
  async drain(): Promise<void> {
    this.capacity.close();
    await this.#client.drain();
  }

  /** Ends the requests in flight, as interrupted. */
  async close(): Promise<void> {
    this.capacity.close();
    await Promise.all([this.#client, ...this.#draining].map((client) => client.close()));
  }

  #settle(slot: Slot<Target>, { request, startedAtMs, attempted }: Settled): void {
    const { clock, random } = this.#options;
    const { outcome } = attempted;
    this.#log.note(outcome);
    const ended = { startedAtMs, nowMs: clock.elapsedMs(), random: random() };
    const wasAnyHeld = this.holds.isAnyOpen;
    const isHeld = this.holds.note(request, outcome, ended);
    if (this.holds.isAnyOpen !== wasAnyHeld) this.#options.onCircuitChanged();
    if (isHeld && outcome.kind === "refused") this.#log.noteHeld(outcome);
    this.capacity.settle(slot, startedAtMs, attempted);
  }

  #canName(request: UpstreamRequest): boolean {
    return this.#dialect.canName(request, this.#nameOf(request.model));
  }

  #exchangeOf(request: UpstreamRequest, { traceparent }: Span) {
    const sent = traceparent === null ? request : { ...request, traceparent };
    return this.#dialect.exchangeOf(sent, this.#nameOf(request.model));
  }

  #nameOf(model: string): string | null {
    const name = [model, ANY_MODEL].find((each) => this.#names.has(each));
    return (name === undefined ? this.#formerNames.get(model) : this.#names.get(name)) ?? null;
  }

  #newClient(): Client {
    const { clock, maxAnswerBytes } = this.#options;
    const [config, dialect] = [this.#config, this.#dialect];
    return new Client({ config, dialect, clock, maxAnswerBytes });
  }

  #drain(client: Client): void {
    this.#draining.add(client);
    void client.drain().then(() => this.#draining.delete(client));
  }
}

/** Leaves out secrets, and what a machine may have less of: connections. */
function hashOf(config: UpstreamConfig): string {
  const { base_url, azure, models, priority, weight, schedule } = config;
  const { requests_per_minute, tokens_per_minute, check_models } = config;
  const rates = { requests_per_minute, tokens_per_minute };
  const settings = { base_url, azure, models, priority, weight, schedule, check_models, ...rates };
  return createHash("sha256").update(JSON.stringify(settings)).digest("hex").slice(0, 16);
}

/** Makes the answer of a server that is asked for a model which it does not have. */
function unknownModel(model: string): Outcome {
  const message = `The model \`${truncate(model)}\` does not exist or you do not have access to it.`;
  const error = { message, type: "invalid_request_error", param: null, code: "model_not_found" };
  const body = Buffer.from(JSON.stringify({ error }));
  return { kind: "answered", status: 404, requestId: null, body, usage: NO_USAGE };
}

/** Makes the outcome of an answer that was not read to its end. */
const cutShort = ({ aborted }: AbortSignal): Outcome =>
  aborted ? { kind: "interrupted" } : { kind: "broken", detail: "the answer broke off" };

/** Returns what the head of an answer tells; the reader of the answer gets the rest. */
function beginningOf(answer: Proxied | Unproxied, nowMs: number): Attempted {
  if (answer.kind !== "proxied") return { outcome: answer, hints: null };
  const { status, headers } = answer;
  const known = { status, requestId: null, body: NOTHING };
  const outcome: Outcome = isOverload(status)
    ? { kind: "overloaded", ...known, retryAfterMs: retryAfterMs(headers, nowMs) }
    : { kind: "answered", ...known, usage: NO_USAGE };
  return { outcome, hints: rateLimitHints(headers) };
}
