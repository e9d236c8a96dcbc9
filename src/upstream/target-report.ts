/**
 * What is known of a target: its condition at the moment, its figures for people, and the report by which other replicas
 * learn of it. A part of the port in `upstream.ts`.
 */
import type { LaneDemand } from "../batch/slot-share.ts";
import type { ScheduleConfig } from "../config/upstreams.ts";
import type { RequestKind, Unavailability } from "./request.ts";

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
    /** Whether lines alone may be to blame. Replicas of an older version do not report it. */
    readonly isInDoubt?: boolean;
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

/** What another replica has reported. */
export interface PeerReport {
  readonly owner: string;
  readonly targets: readonly TargetReport[];
}
