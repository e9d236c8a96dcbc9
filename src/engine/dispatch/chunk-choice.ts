/**
 * Chooses the chunks that one statement claims, from the queues of the routes. Each choice is reserved, so that the next
 * one takes it into account as if it were claimed already. A choice must end quickly, because nothing else runs
 * meanwhile.
 */
import type { Clock } from "../../clock.ts";
import type { RunnableChunks } from "../../store/chunks.ts";
import type { RouteQueue } from "./route-queue.ts";

/** The most chunks, and about the most lines, that one statement claims: many chunks of small batches, or a few large ones. */
const MAX_CLAIMED_CHUNKS = 16;
const MAX_CLAIMED_LINES = 2_048;
/** The time on the event loop for the choices of one statement. */
const MAX_CHOOSING_MS = 10;

/** Chunks of one batch and model that are to be claimed. */
export interface Choice {
  readonly queue: RouteQueue;
  readonly runnable: RunnableChunks;
  /** Ends each reservation. */
  readonly reservations: (() => void)[];
}

export const choiceKey = ({ batchId, model }: Pick<RunnableChunks, "batchId" | "model">): string =>
  `${batchId} ${model}`;

export interface ChoiceDeps {
  readonly clock: Clock;
  /** Whether the memory for lines is used up. */
  readonly isMemoryFull: () => boolean;
}

/** Returns the choices by their keys; none when nothing can be claimed now. */
export function chooseChunks(
  queues: readonly RouteQueue[],
  deps: ChoiceDeps,
): ReadonlyMap<string, Choice> {
  const { clock, isMemoryFull } = deps;
  const chosen = new Map<string, Choice>();
  const startedAtMs = clock.elapsedMs();
  let chunkCount = 0;
  let lineCount = 0;
  while (chunkCount < MAX_CLAIMED_CHUNKS && lineCount < MAX_CLAIMED_LINES) {
    // The bytes of a chunk are known only after its claim, so a full memory is given one at a time.
    if (chunkCount > 0 && isMemoryFull()) break;
    // With 30,000 open batches a choice takes some milliseconds. The others follow in the next pass.
    if (chunkCount > 0 && clock.elapsedMs() - startedAtMs > MAX_CHOOSING_MS) break;
    const next = choose(queues, deps);
    if (next === null) break;
    const { queue, runnable } = next;
    const end = queue.reserve(runnable);
    const known = chosen.get(choiceKey(runnable));
    if (known === undefined) {
      chosen.set(choiceKey(runnable), { queue, runnable, reservations: [end] });
    } else known.reservations.push(end);
    chunkCount++;
    lineCount += runnable.nextLineCount;
  }
  return chosen;
}

/**
 * Chooses the open route with the fewest open chunks, so that no route takes the memory of the others. While a route is in doubt,
 * each project may have one chunk there. Otherwise the lines that are to blame would send every probe, as they are all that waits.
 */
function choose(
  queues: readonly RouteQueue[],
  { clock, isMemoryFull }: ChoiceDeps,
): Pick<Choice, "queue" | "runnable"> | null {
  const nowMs = clock.nowMs();
  // A full memory still admits one chunk of each project at each route.
  const memory = isMemoryFull() ? "full" : "free";
  const open = queues
    .filter(({ route }) => route.opensAtMs <= nowMs || route.isInDoubt)
    .sort((a, b) => a.openChunkCount - b.openChunkCount);
  for (const queue of open) {
    const runnable = queue.next(queue.route.opensAtMs <= nowMs ? memory : "full");
    if (runnable !== null) return { queue, runnable };
  }
  return null;
}
