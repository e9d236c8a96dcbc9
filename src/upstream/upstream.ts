/**
 * The port to the models. A *target* is one upstream endpoint; a *route* is the set of targets that serve a public
 * model name. The batches that have lines for a route join its fair queue. The engine acquires a slot for each line
 * when it is the turn of its batch, and sends the line with that slot. The retries of a line and the choice of its
 * targets stay behind this port. A route also passes interactive requests through, ahead of the lines of batches.
 */
import type { Readable } from "node:stream";
import type { FairQueue, Flow } from "../batch/fair-queue.ts";
import type { Outcome } from "../batch/outcome.ts";
import type { LaneDemand, SlotDemand, SlotShare } from "../batch/slot-share.ts";
import type { AllowedAnswer } from "../batch/token-estimate.ts";
import type { ScheduleConfig, UpstreamConfig } from "../config/upstreams.ts";
import type { BatchEndpoint } from "../contract/batch.ts";
import type { WaitingReason } from "../contract/batch-extension.ts";

/** One line or one request of a client, ready to go out. */
export interface UpstreamRequest {
  /** The project of the client. */
  readonly project: string;
  readonly endpoint: BatchEndpoint;
  /** The public model name that is asked for. */
  readonly model: string;
  /** Whether the body names the model itself. If not, the name is written into it. */
  readonly isModelInBody: boolean;
  /** One JSON object, as the client wrote it. */
  readonly body: Buffer;
  /** An estimate of the tokens of its body. */
  readonly inputTokens: number;
  /** An estimate of the tokens that its answer may have. */
  readonly answerTokens: number;
  /** The instant from which on no attempt starts. */
  readonly deadlineAtMs: number;
  /** The memory of the answer, from its first byte until its sender releases it. A proxied answer has none. */
  readonly room?: AnswerRoom | undefined;
  /** What a line may use; missing where nothing bounds that. */
  readonly allowance?: Allowance | undefined;
  /** The trace it belongs to, as W3C `traceparent`; null without one. */
  readonly traceparent: string | null;
}

/** The requests that a target accepts or refuses alike, apart from their content. */
export type RequestKind = Pick<UpstreamRequest, "project" | "endpoint" | "model">;

/** The memory that an answer may take. */
export interface AnswerRoom {
  /** Adds bytes that have come. Returns null when more may come, else a promise that resolves when they may. */
  add(bytes: number): Promise<void> | null;
  /** Releases the memory, because the answer is not needed any more. */
  release(): void;
}

/** The part of a budget and of quotas that a line has while it is at a target. A line that waits would keep it from others. */
export interface Allowance {
  /**
   * Takes it for an attempt, unless the line has it. Returns a promise only where the store has to be asked: false when
   * there is no room at the moment, or no line goes out any more.
   */
  take(): true | Promise<boolean>;
  /** Leaves it to others, unless the line has none. */
  giveBack(): void;
}

/** It has two signals, because the start of another attempt and the end of this one are different questions. */
export interface SendSignals {
  /** Aborts when no further attempt may start. It also ends every wait. */
  readonly stop: AbortSignal;
  /** Aborts when the attempt under way must end: after `stop`, or never. */
  readonly abort: AbortSignal;
  /** Learns what the lines do. */
  readonly watch?: LineWatch;
}

/** Learns which lines of a run are under way and which wait, for people to read. Every line passes here. */
export interface LineWatch {
  attemptBegins(): void;
  attemptEnded(): void;
  /** A line waits for its next attempt after such a failure. */
  retryBegins(failure: Unavailability): void;
  retryEnded(): void;
}

/** The result of an interactive request. */
export type ProxyResult =
  | Proxied
  /** The target has no such model, and there was nothing to ask it for. */
  | { readonly kind: "unknown_model" }
  /** Every target is down or asks to be left alone; `retryAfterMs` is null when the time is not known. */
  | { readonly kind: "unavailable"; readonly retryAfterMs: number | null }
  | Extract<Outcome, { kind: "unreachable" | "broken" | "timed_out" | "interrupted" | "refused" }>;

/** An answer whose body is still on its way. */
export interface Proxied {
  readonly kind: "proxied";
  readonly status: number;
  /** The headers as the upstream sent them, names in lower case. */
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  /** The body, byte for byte. Destroying it closes the connection. It fails when the answer breaks off. */
  readonly body: Readable;
  /** Resolves when nothing more comes from the upstream, and says whether the answer is whole. It may not have been read. */
  readonly over: Promise<boolean>;
}

/** The sender of lines of a batch, one after the other: a chunk. */
export interface LineSender {
  readonly flow: Flow;
  /** The rank of its new lines within their batch: lowest first, so one chunk is done before the next. */
  readonly rank: number;
  /** The signal that ends its waits. */
  readonly stop: AbortSignal;
}

/** The right to one request in flight at a target of a route. */
export interface Slot {
  release(): void;
}

export interface Route {
  /** The key of the route, equal for two models that the same targets serve. */
  readonly key: string;
  /** The flows of the batches that share the route. */
  readonly flows: FairQueue;
  /** The number of lines that its targets may have in flight now. */
  readonly slotCount: number;
  /** Returns the estimate of an answer, with the fields that the configuration of its targets sets in the body. */
  answerTokensOf(allowed: AllowedAnswer): number;
  /** Returns whether a line had to wait for a slot since the last call: the route was as busy as it can be. */
  takeHadToWait(): boolean;
  /** The date at which it may take lines: one that has passed, or the end of a pause or the start of a window. */
  readonly opensAtMs: number;
  /** Returns null while one of its targets takes lines of this project and model, even if it is full at the moment. */
  unavailabilityFor(kind: Pick<RequestKind, "project" | "model">): Unavailability | null;
  /** Returns when so much work is done that starts then. It rests in the hours at which no target takes lines. */
  endOfWork(startAtMs: number, workMs: number): number;
  /**
   * Acquires the right to send this line: at once where a slot is free, or when it is the turn of its batch. Null means
   * that its `stop` has aborted, or that no target would take it now, for which {@link send} waits. The caller must
   * send with the slot or release it.
   */
  acquire(request: UpstreamRequest, sender: LineSender): Slot | null | Promise<Slot | null>;
  /**
   * Returns null while requests of this kind may go out. Otherwise every target refuses the operator's own key or
   * address, and the promise resolves when that may have changed, or when `stop` aborts.
   */
  held(kind: RequestKind, stop: AbortSignal): Promise<void> | null;
  /**
   * Attempts a line until its outcome is final, or `interrupted` when a signal or the deadline ends it first. The first
   * attempt uses the slot of {@link acquire} and always gives it back. Without one the line waits for a slot, as its
   * retries do.
   */
  send(request: UpstreamRequest, signals: SendSignals, slot?: Slot | null): Promise<Outcome>;
  /** Passes a request through, ahead of all lines. `abort` ends it at any moment, its body included. */
  proxy(request: UpstreamRequest, abort: AbortSignal): Promise<ProxyResult>;
}

export interface UpstreamModel {
  readonly id: string;
  readonly ownedBy: string;
}

/** The answer of a target that is asked for its models. */
export type ModelListing =
  | {
      readonly kind: "listed";
      readonly ids: readonly string[];
      /** Other names of the same models. */
      readonly aliases: readonly string[];
    }
  /** A status other than 200. */
  | { readonly kind: "refused"; readonly status: number }
  | { readonly kind: "silent"; readonly detail: string }
  /** The target has no list to ask for, or batchd is stopping. */
  | { readonly kind: "unasked" };

/** The models of a target beyond its configuration. */
export interface TargetModels {
  readonly name: string;
  readonly listing: ModelListing;
}

/** The targets of a model when each of them is known not to have it; null when one may. */
export type ModelCheck = (model: string) => readonly TargetModels[] | null;

export interface AskedForModels {
  readonly targets: readonly TargetModels[];
  readonly check: ModelCheck;
}

/** The reason for which none of the targets of a route takes lines now. */
export interface Unavailability {
  readonly reason: Extract<
    WaitingReason,
    | "no_room"
    | "upstream_down"
    | "refused_credentials"
    | "out_of_quota"
    | "wrong_address"
    | "outside_hours"
  >;
  /** A description for tenants. It must hold nothing of an answer but its status and code, and no secrets. */
  readonly upstreamError: string | null;
}

/** The condition of a target at the moment. */
export interface TargetStatus {
  readonly name: string;
  /** The number of requests that it may have in flight now. */
  readonly limit: number;
  readonly inFlight: { readonly batch: number; readonly interactive: number };
  /** The number of requests that wait for it. Each waits for every target that would do. */
  readonly waiting: number;
  /** The state of its circuit breaker. */
  readonly circuit: "closed" | "open" | "half_open";
}

/** A limit of a rate, and how much of it this replica has used in the last sixty seconds. */
export interface RateReport {
  /** The configured limit, for all replicas together; null when none is configured. */
  readonly configured: number | null;
  /** The limit that the answers name; null when they name none. */
  readonly learned: number | null;
  readonly used: number;
}

/** The figures of a target at one replica, for people. The counts begin with the start of the replica. */
export interface TargetFigures extends Omit<TargetStatus, "name"> {
  readonly attempts: {
    readonly answered: number;
    /** Refusals with the status 429. */
    readonly rateLimited: number;
    /** Refusals for any other overload. */
    readonly overloaded: number;
    readonly failed: number;
  };
  /** The number of attempts by the time that they took at the most; null is beyond all bounds. */
  readonly durations: readonly (readonly [upToSeconds: number | null, count: number])[];
  readonly requestRate: RateReport | null;
  readonly tokenRate: RateReport | null;
  /** The hours at which it takes lines; null when these are all. */
  readonly hours: {
    /** The lines that all replicas may have in flight now. */
    readonly concurrency: number;
    /** The next change of that number; null when there is none in the next weeks. */
    readonly next: { readonly atMs: number; readonly concurrency: number } | null;
  } | null;
}

/** The condition of a target, for the other replicas. It is kept as JSON, and holds no secret. */
export interface TargetReport {
  readonly name: string;
  /** The public names of its models, or `*`. */
  readonly models: readonly string[];
  /** The models that a target with `*` lists, as far as this is known. */
  readonly listed: readonly string[];
  /** A hash of the settings that must be the same at every replica. */
  readonly settings: string;
  /** The requests that the replica can have in flight itself. */
  readonly maxConcurrency: number;
  /** The configured limit for all replicas together. Replicas of an older version report none. */
  readonly limit?: number;
  /** What the replica could use of it. Replicas of an older version report none. */
  readonly lanes?: LaneDemand;
  readonly schedule: ScheduleConfig | null;
  /** The time until it may take lines; null when that is never. */
  readonly opensInMs: number | null;
  /** The reason for which it takes no lines at all. */
  readonly unavailability: Unavailability | null;
  /** The circuits that this replica has opened itself. */
  readonly circuits: readonly {
    /** The requests that it concerns; null for all. */
    readonly kind: RequestKind | null;
    /** The date by the clock of the store, as everywhere in a report. */
    readonly openedAtMs: number;
    readonly unavailability: Unavailability;
  }[];
  /** The latest good answer of any request; null before the first. */
  readonly goodAtMs: number | null;
  /** The latest start of a request that was served; null before the first. */
  readonly servedAtMs: number | null;
  /** The latest start of a served request, by the keys of kinds that were refused before. */
  readonly servedKinds: readonly (readonly [string, number])[];
  /** The projects and models of which it takes no lines: the latest of them, if there are many. */
  readonly held: readonly {
    readonly project: string;
    readonly model: string;
    readonly unavailability: Unavailability;
  }[];
  /** Replicas of an older version report none. */
  readonly figures?: TargetFigures;
}

/** The route of a model at one replica, for a forecast. */
export interface ReplicaRoute extends Pick<Route, "key" | "unavailabilityFor" | "endOfWork"> {
  /** The time until it may take lines; not above 0 when it may now. */
  readonly opensInMs: number;
}

/** What this replica could use at a target, of the limit that all replicas share. */
export interface TargetDemand extends Omit<SlotDemand, "wanted"> {
  readonly lanes: LaneDemand;
  /** The share that lines keep while interactive requests want everything, from 0 to 1. */
  readonly batchShare: number;
  /** The slots of all replicas that are kept free for interactive requests. */
  readonly reserve: number;
}

/** What another replica has reported. */
export interface PeerReport {
  readonly owner: string;
  readonly targets: readonly TargetReport[];
}

export interface Upstreams {
  /** The route of a public model name; null when no target serves it. */
  findRoute(model: string): Route | null;
  /**
   * All public model names, those of the other replicas too; targets that serve any model are asked for theirs.
   */
  listModels(): Promise<UpstreamModel[]>;
  listTargets(): TargetStatus[];
  /** Describes each target for the other replicas. `nowMs` is the date by the clock of the store. */
  report(nowMs: number): TargetReport[];
  /** Takes the latest reports of the replicas that run batches. */
  setPeers(peers: readonly PeerReport[], self: { owner: string; nowMs: number }): void;
  /** Forgets which requests of projects that are deleted are held. */
  forgetProjects(projects: readonly string[]): void;
  /** Sets the listener for circuits that open or close because of this process. */
  onCircuitChanged(listener: () => void): void;
  /** The route of a model at another replica; null when that one does not serve it. */
  findPeerRoute(owner: string, model: string): ReplicaRoute | null;
  /** Says of models whether one of these replicas serves them. */
  servedBy(peers: readonly PeerReport[]): (model: string) => boolean;
  /** Whether another replica serves the model. */
  isServedElsewhere(model: string): boolean;
  /** Lists what each target needs of the limits that replicas share. */
  listDemands(): TargetDemand[];
  /**
   * Sets the part that this process has of the limits of each target. A target that is not named takes nothing. Until
   * the first call each target has its whole limits.
   */
  setShares(shares: readonly SlotShare[]): void;
  /** Asks every target for its models, within some seconds. Never rejects. */
  askForModels(): Promise<AskedForModels>;
  /** Asks only the targets with `check_models`. Never rejects. */
  checkModels(): Promise<ModelCheck>;
  /**
   * Takes on another configuration. Targets keep what they have learned. A target that is removed ends its requests in
   * flight. Routes may change, so a caller that keeps one must ask for it again.
   */
  reconfigure(upstreams: readonly UpstreamConfig[]): void;
  close(): Promise<void>;
}
