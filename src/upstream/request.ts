/**
 * A request on its way to a model, and what it may meet: the memory and the allowance that it has, the signals that end it,
 * the reason for which no target takes it, and the answer that is passed on. A part of the port in `upstream.ts`.
 */
import type { Readable } from "node:stream";
import type { Outcome } from "../batch/outcome.ts";
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

/** The headers of an answer, with names in lower case. */
export type AnswerHeaders = Readonly<Record<string, string | string[] | undefined>>;

/** An answer whose body is still on its way. */
export interface Proxied {
  readonly kind: "proxied";
  readonly status: number;
  /** Whether it is a 429 for the size of the request, which says nothing about the load. */
  readonly isTooLarge: boolean;
  readonly headers: AnswerHeaders;
  /** The body, byte for byte. Destroying it closes the connection. It fails when the answer breaks off. */
  readonly body: Readable;
  /** Resolves when nothing more comes from the upstream. The answer may not have been read. */
  readonly over: Promise<AnswerEnd>;
}

export interface AnswerEnd {
  readonly isWhole: boolean;
  /** Whether it waited for its reader, so that it took longer than the upstream did. */
  readonly wasPaused: boolean;
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
