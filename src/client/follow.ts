/**
 * Follows a batch or a delivery to its end, for as long as it takes: a server that is away for a while is asked again, so that
 * a wait of a week survives restarts and broken networks.
 */
import { isFinal } from "../batch/status.ts";
import { type Clock, sleep } from "../clock.ts";
import type { ShownBatch } from "./shown-batch.ts";

/** The pause between two looks grows to the second number, so that a short wait ends soon and a long one costs little. */
const POLL_EVERY_MS = { first: 250, last: 5_000, growth: 1.3 };
const TRY_AGAIN_MS = { first: 1_000, last: 30_000, growth: 2 };

export interface View<Thing = ShownBatch> {
  show(thing: Thing): void;
  /** The server cannot be reached, and will be asked again. */
  showTrouble(problem: string): void;
  close(): void;
}

interface Following<Thing> {
  readonly read: () => Promise<Thing>;
  /** Returns whether nothing happens any more without the user. */
  readonly isOver: (thing: Thing) => boolean;
  /** Returns a sentence for an error after which it makes sense to go on; null for any other. */
  readonly passing: (error: unknown) => string | null;
  readonly view: View<Thing>;
  readonly clock: Clock;
  readonly signal: AbortSignal;
}

/** Follows a batch as {@link follow} does, until it has ended, or waits for its user. */
export const followBatch = (following: Omit<Following<ShownBatch>, "isOver">) =>
  follow({
    ...following,
    isOver: (batch) => isFinal(batch.status) || waitsForUser(batch),
  });

/** Resolves to what is followed once it is over; null when the signal came first. */
export async function follow<Thing>({
  read,
  isOver,
  passing,
  view,
  clock,
  signal,
}: Following<Thing>): Promise<Thing | null> {
  let nextPollMs = POLL_EVERY_MS.first;
  let tryAgainMs = TRY_AGAIN_MS.first;
  try {
    while (!signal.aborted) {
      try {
        const thing = await read();
        if (signal.aborted) return null;
        view.show(thing);
        if (isOver(thing)) return thing;
        tryAgainMs = TRY_AGAIN_MS.first;
        await sleep(clock, nextPollMs, signal);
        nextPollMs = Math.min(nextPollMs * POLL_EVERY_MS.growth, POLL_EVERY_MS.last);
      } catch (error) {
        if (signal.aborted) return null;
        const problem = passing(error);
        if (problem === null) throw error;
        view.showTrouble(problem);
        await sleep(clock, tryAgainMs, signal);
        tryAgainMs = Math.min(tryAgainMs * TRY_AGAIN_MS.growth, TRY_AGAIN_MS.last);
      }
    }
    return null;
  } finally {
    view.close();
  }
}

/** A batch that was paused by a client may be resumed by the same one. After a sample or at its budget, the user decides. */
const waitsForUser = ({ x_batchd: more }: ShownBatch): boolean => {
  const reason: string | undefined = more?.paused?.reason;
  return reason === "sample" || reason === "budget";
};
