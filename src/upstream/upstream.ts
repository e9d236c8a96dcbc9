/**
 * The port to the models. A *target* is one upstream endpoint; a *route* is the set of targets that
 * serve a public model name. The batches that have lines for a route join its fair queue; the engine acquires a slot for
 * each line when it is the turn of its batch, and sends the line with that slot. How a line is retried, and on which
 * target, is decided behind this port. Beside the lines of batches a route passes interactive requests through, which go
 * first.
 */
import type { Readable } from "node:stream";
import type { FairQueue, Flow } from "../batch/fair-queue.ts";
import type { Outcome } from "../batch/outcome.ts";
import type { UpstreamConfig } from "../config/upstreams.ts";
import type { BatchEndpoint, WaitingReason } from "../contract/batch.ts";

/** One line or one request of a client, ready to go out. */
export interface UpstreamRequest {
  /** Whose it is. */
  readonly project: string;
  readonly endpoint: BatchEndpoint;
  /** The public model name that is asked for. */
  readonly model: string;
  /** Whether the body says so itself. If not, the name is written into it. */
  readonly isModelInBody: boolean;
  /** One JSON object, as the client wrote it. */
  readonly body: Buffer;
  /** No attempt starts at or after this instant. */
  readonly deadlineAtMs: number;
  /** What holds the answer while it comes, and as long as its sender wants it. Left out where it is passed on. */
  readonly room?: AnswerRoom | undefined;
  /** The trace it belongs to, as W3C `traceparent`; null without one. */
  readonly traceparent: string | null;
}

/** Requests that a target accepts or refuses alike, as far as it is not about what they say. */
export type RequestKind = Pick<UpstreamRequest, "project" | "endpoint" | "model">;

/** The memory that an answer may take. */
export interface AnswerRoom {
  /** So many bytes have come. Null when more may come, else when it may. */
  add(bytes: number): Promise<void> | null;
  /** The answer is dropped. */
  release(): void;
}

/** Two questions, two signals. */
export interface SendSignals {
  /** "May I start another attempt?" Ends every wait. */
  readonly stop: AbortSignal;
  /** "Must I drop the attempt that is under way?" Aborts after `stop`, or never. */
  readonly abort: AbortSignal;
}

/** What becomes of an interactive request. */
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
  /** As the upstream sent them, names in lower case. */
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  /** Byte for byte. Destroying it gives the connection up; it fails when the answer breaks off. */
  readonly body: Readable;
}

/** What sends lines of a batch, one after the other: a chunk. */
export interface LineSender {
  readonly flow: Flow;
  /** The new lines of a batch go by rank, lowest first, so one chunk is done before the next. */
  readonly rank: number;
  /** Ends its waits. */
  readonly stop: AbortSignal;
}

/** The right to one request in flight at a target of a route. */
export interface Slot {
  release(): void;
}

export interface Route {
  /** Equal for two models that the same targets serve. */
  readonly key: string;
  /** The batches that share it. A batch that joins has a share until it leaves. */
  readonly flows: FairQueue;
  /** How many lines its targets may have in flight now. */
  readonly slotCount: number;
  /** Whether a line had to wait for a slot since this was asked last: the route was as busy as it can be. */
  takeHadToWait(): boolean;
  /** The date at which it may take lines: one that has passed, or the end of a pause or the start of a window. */
  readonly opensAtMs: number;
  /** Null while one of its targets takes lines of this project and model, as far as it is not just full. */
  unavailabilityFor(kind: Pick<RequestKind, "project" | "model">): Unavailability | null;
  /** When so much work is done that starts then, with all the hours at which no target takes lines. */
  endOfWork(startAtMs: number, workMs: number): number;
  /**
   * The right to send this line, at once where a slot is free, or when the turn of its batch has come. Null when its `stop`
   * aborts first, or when no target would take it now: {@link send} waits for that. A slot must be sent with or released.
   */
  acquire(request: UpstreamRequest, sender: LineSender): Slot | null | Promise<Slot | null>;
  /**
   * Null while requests of this kind may go out; otherwise resolves when that may have changed, or when `stop` aborts.
   * They are held where every target refuses the operator's own key or address.
   */
  held(kind: RequestKind, stop: AbortSignal): Promise<void> | null;
  /**
   * Attempts until an outcome is final, or `interrupted` when a signal or the deadline ends it first. The first attempt
   * uses the slot of {@link acquire}, and gives it back in any case; without one the line waits for a slot as its retries do.
   */
  send(request: UpstreamRequest, signals: SendSignals, slot?: Slot | null): Promise<Outcome>;
  /** Passes a request through, ahead of all lines. `abort` gives it up at any moment, its body included. */
  proxy(request: UpstreamRequest, abort: AbortSignal): Promise<ProxyResult>;
}

export interface UpstreamModel {
  readonly id: string;
  readonly ownedBy: string;
}

/** What a target answers when it is asked for its models. */
export type ModelListing =
  | {
      readonly kind: "listed";
      readonly ids: readonly string[];
      /** Other names of these. */
      readonly aliases: readonly string[];
    }
  /** A status other than 200. */
  | { readonly kind: "refused"; readonly status: number }
  | { readonly kind: "silent"; readonly detail: string }
  /** It has no list to ask for, or batchd is stopping. */
  | { readonly kind: "unasked" };

/** What is known of a target beyond its configuration. */
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

/** Why none of the targets of a route takes lines now. */
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
  /** Without anything of an answer but its status and code, and without secrets. */
  readonly upstreamError: string | null;
}

/** How a target is doing at the moment. */
export interface TargetStatus {
  readonly name: string;
  /** Requests in flight that it may have now. */
  readonly limit: number;
  readonly inFlight: { readonly batch: number; readonly interactive: number };
  /** Requests that wait for it (each waits for every target that would do). */
  readonly waiting: number;
  /** The state of its circuit breaker. */
  readonly circuit: "closed" | "open" | "half_open";
}

export interface Upstreams {
  /** The route of a public model name; null when no target serves it. */
  findRoute(model: string): Route | null;
  /** All public model names; targets that serve any model are asked for theirs. */
  listModels(): Promise<UpstreamModel[]>;
  listTargets(): TargetStatus[];
  /** Asks every target for its models, within some seconds. Never rejects. */
  askForModels(): Promise<AskedForModels>;
  /** The same for those with `check_models` alone. */
  checkModels(): Promise<ModelCheck>;
  /**
   * Takes on another configuration. Targets keep what they have learned; what is in flight at one that goes
   * ends there. Routes may change, so a caller that keeps one asks for it again.
   */
  reconfigure(upstreams: readonly UpstreamConfig[]): void;
  close(): Promise<void>;
}
