/**
 * One upstream endpoint: how requests reach it (`connection.ts`), how much it can take (`capacity/`), what it refuses
 * (`holds.ts`), and what others are told of it. Each attempt needs a slot and gives it back, however the attempt ends.
 */
import { createHash } from "node:crypto";
import { NO_USAGE } from "../batch/batch.ts";
import { INTERRUPTED, type Outcome, type Refused } from "../batch/outcome.ts";
import type { LaneDemand } from "../batch/slot-share.ts";
import type { AllowedAnswer } from "../batch/token-estimate.ts";
import type { UpstreamConfig } from "../config/upstreams.ts";
import { truncate } from "../text/truncate.ts";
import { Capacity, type CapacityOptions } from "./capacity/capacity.ts";
import type { Lane, Limiter } from "./capacity/limiter.ts";
import { Connection, type ConnectionOptions } from "./connection.ts";
import type { Attempted } from "./exchange/attempt.ts";
import { beginningOf } from "./exchange/proxied-answer.ts";
import {
  circuitsOf,
  datesOf,
  followKinds,
  followTarget,
  type OwnedReport,
} from "./followed-circuits.ts";
import { Holds } from "./holds.ts";
import { ModelList, mayServe } from "./model-list.ts";
import type { ProxyResult, RequestKind, Unavailability, UpstreamRequest } from "./request.ts";
import type { Slot } from "./slot.ts";
import { TargetLog } from "./target-log.ts";
import type { TargetReport, TargetStatus } from "./target-report.ts";
import { TargetTelemetry, type TargetTelemetryOptions } from "./target-telemetry.ts";
import { unavailabilityOf } from "./unavailability.ts";
import type { ModelListing, TargetDemand } from "./upstream.ts";

/** The number of listed models that other replicas learn of. */
const MAX_REPORTED_MODELS = 200;
/** Every replica writes its report, and reads all others, every three seconds. A server may list names of any length. */
const MAX_REPORTED_NAMES_BYTES = 32 * 1024;
const NO_ATTEMPT: Attempted = { outcome: INTERRUPTED, hints: null };

export interface TargetOptions extends CapacityOptions, ConnectionOptions, TargetTelemetryOptions {}

/** An attempt that has ended. */
interface Settled {
  readonly request: UpstreamRequest;
  readonly startedAtMs: number;
  readonly attempted: Attempted;
}

export class Target {
  readonly name: string;
  readonly capacity: Capacity;
  readonly holds: Holds;
  readonly telemetry: TargetTelemetry;
  /** The models that the target lists. */
  readonly models: ModelList;
  readonly #log: TargetLog;
  readonly #options: TargetOptions;
  readonly #connection: Connection;
  #config: UpstreamConfig;

  constructor(config: UpstreamConfig, options: TargetOptions) {
    this.name = config.name;
    this.#options = options;
    this.#config = config;
    this.capacity = new Capacity(config, options);
    this.holds = new Holds();
    this.#log = new TargetLog(config.name, options);
    this.telemetry = new TargetTelemetry(config.name, options);
    this.#connection = new Connection(config, options);
    const ask = () => this.#connection.askForModels();
    this.models = new ModelList({ ...options, name: config.name, ask });
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
    return this.#connection.servesAnyModel;
  }

  /** Returns the estimate of an answer, with the fields that the configuration sets. */
  answerTokensOf(allowed: AllowedAnswer): number {
    return this.#connection.answerTokensOf(allowed);
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
      name: this.name,
      models: this.#connection.models,
      maxConcurrency,
      lanes: this.#lanes,
      schedule,
      listed: this.servesAnyModel ? reportedNames(this.models.latestIds) : [],
      settings: hashOf(this.#config),
      opensInMs: Number.isFinite(opensInMs) ? opensInMs : null,
      unavailability: this.#unavailability(null),
      ...circuitsOf(this, dates),
      held: this.holds.list().map(({ kind: { project, model }, refused }) => ({
        project,
        model,
        unavailability: unavailabilityOf(refused),
      })),
      figures: { ...this.status, ...this.telemetry.figures, ...this.capacity.figures },
    };
  }

  /** Holds requests of circuits that other replicas have opened, or probes for them. */
  followCircuits(reports: readonly OwnedReport[], self: { owner: string; nowMs: number }): void {
    const dates = datesOf(this.#options.clock, self.nowMs);
    if (followTarget(this, reports, { ...self, dates })) this.capacity.followedCircuit();
    if (followKinds(this, reports, { ...self, dates })) this.holds.notify();
  }

  get status(): TargetStatus {
    const { limit, inFlight, waitingCount } = this.limiter;
    const isHeld = this.capacity.circuit === "closed" && this.holds.isAnyOpen;
    const circuit = isHeld ? "open" : this.capacity.circuit;
    return { name: this.name, limit, inFlight: { ...inFlight }, waiting: waitingCount, circuit };
  }

  /** What it has work for, while it shares the limits of the target with other replicas. */
  get demand(): TargetDemand {
    const { max_concurrency: limit, batch_share: batchShare } = this.#config;
    const held = Math.max(this.limiter.totalInFlight, Math.min(limit, this.capacity.slotCount));
    const { reserve } = this.capacity;
    return { target: this.name, limit, held, batchShare, reserve, lanes: this.#lanes };
  }

  get #lanes(): LaneDemand {
    const { limiter } = this;
    // A target that requests wait for could use all there is: it may lack slots, or its part of a rate.
    const wanted = (lane: Lane) =>
      limiter.isWaiting(lane) ? this.#config.max_concurrency : limiter.inFlight[lane];
    return { interactive: wanted("interactive"), batch: wanted("batch") };
  }

  /** Takes another configuration from now on. Requests in flight end as they began. */
  reconfigure(config: UpstreamConfig): void {
    this.#config = config;
    this.#connection.reconfigure(config);
    this.capacity.reconfigure(config);
    this.models.forget();
    this.releaseHolds();
  }

  /**
   * Tries again at once what the target refused or put off: the operator may have mended the cause on either side. An authority
   * that its file does not have any more is trusted no longer.
   */
  releaseHolds(): void {
    this.#connection.renewTrust(this.#config);
    this.capacity.endPause();
    this.holds.release();
    this.#log.forget();
  }

  /** Gives an unused slot back. */
  decline(slot: Slot<Target>): void {
    this.capacity.settle(slot, this.#options.clock.elapsedMs(), NO_ATTEMPT);
    slot.release();
  }

  /** Makes one attempt, learns from it and gives the slot back. Never rejects. */
  async send(slot: Slot<Target>, request: UpstreamRequest, abort: AbortSignal): Promise<Outcome> {
    const { clock } = this.#options;
    const startedAtMs = clock.elapsedMs();
    let attempted = NO_ATTEMPT;
    try {
      if (!this.#connection.canName(request)) return unknownModel(request.model);
      // The wait for the slot may have outlasted the window.
      if (clock.nowMs() < request.deadlineAtMs) {
        const span = this.telemetry.startAttempt(request);
        const prepared = this.#connection.prepare(request, span);
        const { client, exchange } = prepared instanceof Promise ? await prepared : prepared;
        attempted = await client.send(exchange, abort);
        this.telemetry.endAttempt(span, attempted.outcome, clock.elapsedMs() - startedAtMs);
      }
      return attempted.outcome;
    } finally {
      this.#settle(slot, { request, startedAtMs, attempted });
      slot.release();
    }
  }

  /** Sends an interactive request. The slot is given back when the last byte has come, whether or not it is read. */
  async proxy(
    slot: Slot<Target>,
    request: UpstreamRequest,
    abort: AbortSignal,
  ): Promise<ProxyResult> {
    const { clock } = this.#options;
    const startedAtMs = clock.elapsedMs();
    let attempted = NO_ATTEMPT;
    let answer: ProxyResult | null = null;
    try {
      if (!this.#connection.canName(request)) return { kind: "unknown_model" };
      const span = this.telemetry.startAttempt(request);
      const end = (outcome: Outcome) =>
        this.telemetry.endAttempt(span, outcome, clock.elapsedMs() - startedAtMs);
      const { client, exchange } = await this.#connection.prepare(request, span);
      answer = await client.proxy(exchange, abort);
      attempted = beginningOf(answer, clock.nowMs());
      if (answer.kind === "proxied") {
        void answer.over.then(({ isWhole, wasPaused }) => {
          if (isWhole && !wasPaused) this.capacity.noteWhole(startedAtMs, attempted.outcome);
          slot.release();
          end(isWhole ? attempted.outcome : cutShort(abort));
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
    return mayServe(listing, this.#connection.nameOf(model) ?? model);
  }

  /** Takes nothing new; requests in flight may end. */
  async drain(): Promise<void> {
    this.capacity.close();
    await this.#connection.drain();
  }

  /** Ends the requests in flight, as interrupted. */
  async close(): Promise<void> {
    this.capacity.close();
    await this.#connection.close();
  }

  #settle(slot: Slot<Target>, { request, startedAtMs, attempted }: Settled): void {
    const { clock, random } = this.#options;
    const { outcome } = attempted;
    this.#log.note(outcome);
    if (outcome.kind === "unreachable") this.#connection.renewTrust(this.#config);
    const ended = { startedAtMs, nowMs: clock.elapsedMs(), random: random() };
    const wasAnyHeld = this.holds.isAnyOpen;
    const isHeld = this.holds.note(request, outcome, ended);
    if (this.holds.isAnyOpen !== wasAnyHeld) this.#options.onCircuitChanged();
    if (isHeld && outcome.kind === "refused") this.#log.noteHeld(outcome);
    this.capacity.settle(slot, startedAtMs, attempted);
  }
}

/** Returns the first names, as many as a report has room for. */
function reportedNames(names: readonly string[]): string[] {
  let bytes = 0;
  return names.slice(0, MAX_REPORTED_MODELS).filter((name) => {
    bytes += Buffer.byteLength(name);
    return bytes <= MAX_REPORTED_NAMES_BYTES;
  });
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

/** Makes the outcome of an answer that did not come to its end. */
const cutShort = ({ aborted }: AbortSignal): Outcome =>
  aborted ? INTERRUPTED : { kind: "broken", detail: "the answer broke off" };
