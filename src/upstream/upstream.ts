/**
 * The port to the models. A *target* is one upstream endpoint; a *route* is the set of targets that serve a public
 * model name. The batches that have lines for a route join its fair queue. The engine acquires a slot for each line
 * when it is the turn of its batch, and sends the line with that slot. The retries of a line and the choice of its
 * targets stay behind this port. A route also passes interactive requests through, ahead of the lines of batches.
 *
 * What is sent is in `request.ts`, and what a target says of itself in `target-report.ts`.
 */
import type { FairQueue, Flow } from "../batch/fair-queue.ts";
import type { Outcome } from "../batch/outcome.ts";
import type { LaneDemand, SlotDemand, SlotShare } from "../batch/slot-share.ts";
import type { AllowedAnswer } from "../batch/token-estimate.ts";
import type { UpstreamConfig } from "../config/upstreams.ts";
import type {
  ProxyResult,
  RequestKind,
  SendSignals,
  Unavailability,
  UpstreamRequest,
} from "./request.ts";
import type { PeerReport, TargetReport, TargetStatus } from "./target-report.ts";

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
  /** Whether the lines of some may be all that keeps it from taking lines of others now. */
  readonly isInDoubt: boolean;
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
