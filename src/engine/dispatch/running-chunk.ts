/**
 * Connects the scheduler and the run of a chunk: the run gets its lines from the queue of its route and reports its
 * end. Neither may reach further into the other.
 */
import type { ClaimedChunk } from "../../store/chunks.ts";
import type { Route } from "../../upstream/upstream.ts";
import type { HandOut } from "./route-queue.ts";

/** The parts that a run of a chunk needs. */
export interface ChunkStart {
  readonly claimed: ClaimedChunk;
  readonly route: Route;
  /** Finds the route of a model, which may have moved since the file was read; null when no target serves the model. */
  readonly routeOf: (model: string) => Route | null;
  /** Says whether another replica serves a model that has no route here. */
  readonly isServedElsewhere: (model: string) => boolean;
  /** Lets the chunk hand out its lines from now on, until `stop` aborts. */
  readonly handOut: (stop: AbortSignal) => HandOut;
  /** The callback for each line that has its outcome. */
  readonly onRecorded: () => void;
}

/** The end of a run: `early` with work left, `stopped` because its batch is to stop. */
export type ChunkEnd = "done" | "early" | "stopped";

/** A chunk that is worked on. */
export interface RunningChunk {
  /** It never rejects. */
  readonly ended: Promise<ChunkEnd>;
  /** Ends the run once the lines in flight have ended: its other lines take another route. */
  reroute(): void;
}
