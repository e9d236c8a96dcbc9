/**
 * The port to the models. A *target* is one upstream endpoint; a *route* is the set of targets that
 * serve a public model name. The engine asks a route for room, admits lines to it, and sends them; how a
 * line is retried, and on which target, is decided behind this port.
 */
import type { Outcome } from "../batch/outcome.ts";
import type { BatchEndpoint } from "../contract/batch.ts";

/** One line, ready to go out. */
export interface UpstreamRequest {
  readonly endpoint: BatchEndpoint;
  /** The public model name that the line asks for. */
  readonly model: string;
  /** The body to send to a target that knows the model by `upstreamModel`; null keeps the client's name. */
  bodyFor(upstreamModel: string | null): Buffer;
  /** No attempt starts at or after this instant. */
  readonly deadlineAtMs: number;
}

/** Two questions, two signals. */
export interface SendSignals {
  /** "May I start another attempt?" Ends every wait. */
  readonly stop: AbortSignal;
  /** "Must I drop the attempt that is under way?" Aborts after `stop`, or never. */
  readonly abort: AbortSignal;
}

export interface Route {
  /** Equal for two models that the same targets serve. */
  readonly key: string;
  /** How many more lines it would take on now. */
  readonly room: number;
  /** True once the line may be taken on, at once when there is room; false when `stop` aborts first. */
  admit(stop: AbortSignal): boolean | Promise<boolean>;
  /** Ends what {@link admit} began. */
  dismiss(): void;
  /** Attempts until an outcome is final, or `interrupted` when a signal or the deadline ends it first. */
  send(request: UpstreamRequest, signals: SendSignals): Promise<Outcome>;
}

export interface UpstreamModel {
  readonly id: string;
  readonly ownedBy: string;
}

export interface Upstreams {
  /** The route of a public model name; null when no target serves it. */
  findRoute(model: string): Route | null;
  /** All public model names; targets that serve any model are asked for theirs. */
  listModels(): Promise<UpstreamModel[]>;
  close(): Promise<void>;
}
