/**
 * Decides for one route which batch has its next chunk claimed. It knows the batches with lines for the route, and
 * which of them have lines at hand.
 *
 * The fair queue of the route decides whose line gets the next slot, and a batch without a chunk here has no part in
 * it. A chunk is therefore claimed for every batch before there is room for its lines. Two rules keep the chunks at
 * hand few. A batch gets its next chunk when all lines of the former have their slots, and only some batches of each
 * project have one. Half of these places are for batches with few lines left, which end soon while the others wait for
 * the end of a long chunk. While the lines at hand are fewer than the slots, the next chunk is claimed ahead: no slot
 * must stay free until it is there.
 */
import type { BatchId, Chunk } from "../../batch/batch.ts";
import type { Contender, Flow } from "../../batch/fair-queue.ts";
import { Sums } from "../../batch/sums.ts";
import { inSlices } from "../../resources/time-slice.ts";
import type { RunnableChunks } from "../../store/chunks.ts";
import type { UpstreamRequest } from "../../upstream/request.ts";
import type { Route, Slot } from "../../upstream/upstream.ts";

/** The number of batches of a project that hand out lines to one route at a time. As many with few lines may join. */
const MAX_HANDING_OUT = 16;
const FEW_LINES = 64;

/** A batch that contends for the route. */
interface Entry {
  readonly flow: Flow;
  /** The chunks that can be claimed; null when there are none. */
  runnable: RunnableChunks | null;
  /** The number of lines in its open chunks that have not had a slot yet. */
  atHandCount: number;
  /** The list that named it last. */
  listNumber: number;
}

/** What the scheduler knows of the batches beside their chunks. */
export interface Standing {
  /** Whether the batch may miss its deadline. */
  readonly isAtRisk: (batchId: BatchId) => boolean;
  readonly projectWeightOf: (project: string) => number;
}

/** A chunk that hands out its lines. */
export interface HandOut {
  /** Acquires a slot as {@link Route.acquire} does, for the batch of the chunk. */
  acquire(request: UpstreamRequest): Slot | null | Promise<Slot | null>;
  /** Records that a line has its slot, or needs none. */
  lineTaken(): void;
  /** Ends the handing out: no more lines of the chunk go out. */
  end(): void;
}

interface HandOutOptions {
  readonly chunk: Pick<Chunk, "number" | "lineCount">;
  readonly stop: AbortSignal;
  /** The callback for room: another chunk may be claimed. */
  readonly onRoom: () => void;
}

export class RouteQueue {
  readonly route: Route;
  /** The number of chunks that are open here, by project: they hand out lines or wait for answers. */
  readonly #openChunkCounts = new Sums<string>();
  readonly #entries = new Map<BatchId, Entry>();
  /** The lines at hand of all batches together. */
  #atHandCount = 0;
  /** The number of lists of claimable chunks that came so far. */
  #listCount = 0;

  constructor(route: Route) {
    this.route = route;
  }

  get openChunkCount(): number {
    return this.#openChunkCounts.total;
  }

  get isIdle(): boolean {
    return this.#entries.size === 0 && this.openChunkCount === 0;
  }

  chunkOpened(project: string): void {
    this.#openChunkCounts.add(project, 1);
  }

  chunkEnded(project: string): void {
    this.#openChunkCounts.add(project, -1);
  }

  /** Takes on a new list of the claimable chunks, in slices. */
  async update(
    listed: readonly RunnableChunks[],
    { isAtRisk, projectWeightOf }: Standing,
  ): Promise<void> {
    this.#listCount++;
    const { flows } = this.route;
    for await (const group of inSlices(listed)) {
      for (const runnable of group) {
        const entry = this.#entryOf(runnable);
        entry.runnable = runnable;
        entry.listNumber = this.#listCount;
        entry.flow.chunkLineCount = runnable.nextLineCount;
        const { priority, project } = runnable;
        flows.reweigh(entry.flow, { priority, projectWeight: projectWeightOf(project) });
      }
    }
    for await (const group of inSlices([...this.#entries])) {
      for (const [batchId, entry] of group) {
        // Entries of the last list stay until here, so that a batch that is named again keeps its share.
        if (entry.listNumber !== this.#listCount) entry.runnable = null;
        entry.flow.isAtRisk = isAtRisk(batchId);
        this.#removeIfDone(batchId);
      }
    }
  }

  /**
   * Returns the batch that is to have its next chunk claimed; null when none may now. While the memory for open chunks
   * is full, only a project without a chunk here may have one: it must not wait for the large chunks of others.
   */
  next(memory: "free" | "full"): RunnableChunks | null {
    const handingOut = new Map<string, number>();
    const waiting: Flow[] = [];
    for (const { flow, atHandCount } of this.#entries.values()) {
      if (atHandCount === 0) continue;
      const { project } = flow.contender;
      handingOut.set(project, (handingOut.get(project) ?? 0) + 1);
    }
    const isAlmostEmpty = this.#atHandCount < this.route.slotCount;
    for (const { flow, runnable, atHandCount } of this.#entries.values()) {
      if (runnable === null || (atHandCount > 0 && !isAlmostEmpty)) continue;
      // No chunk is left when all lines are at hand. A claim for one would find nothing, and take the place of another batch.
      // Without a line at hand there is one: a crash may leave a chunk open whose lines all have their answers.
      if (atHandCount > 0 && atHandCount >= runnable.remainingLineCount) continue;
      if (memory === "full" && this.#openChunkCounts.of(runnable.project) > 0) continue;
      const placeCount =
        runnable.remainingLineCount <= FEW_LINES ? 2 * MAX_HANDING_OUT : MAX_HANDING_OUT;
      const hasPlace = atHandCount > 0 || (handingOut.get(runnable.project) ?? 0) < placeCount;
      if (hasPlace) waiting.push(flow);
    }
    const flow = this.route.flows.takeChunk(waiting);
    return flow === null ? null : (this.#entries.get(flow.contender.batchId)?.runnable ?? null);
  }

  /**
   * Counts the next chunk of the batch as claimed, until the claim has its answer. Returns a function that ends the
   * reservation.
   */
  reserve(runnable: RunnableChunks): () => void {
    const { project, nextLineCount } = runnable;
    const entry = this.#entryOf(runnable);
    this.chunkOpened(project);
    this.#addAtHand(entry, nextLineCount);
    return () => {
      this.chunkEnded(project);
      this.#addAtHand(entry, -nextLineCount);
    };
  }

  /** Forgets the chunks of a batch, of which a claim has found too few. */
  forget(batchId: BatchId): void {
    const entry = this.#entries.get(batchId);
    if (entry === undefined) return;
    entry.runnable = null;
    this.#removeIfDone(batchId);
  }

  /** Lets a chunk of the batch hand out its lines from now on, until `stop` aborts. */
  startHandOut(contender: Contender, { chunk, stop, onRoom }: HandOutOptions): HandOut {
    const entry = this.#entryOf(contender);
    const { route } = this;
    const sender = { flow: entry.flow, rank: chunk.number, stop };
    let left = 0;
    let hasAsked = false;
    const add = (count: number) => {
      left += count;
      this.#addAtHand(entry, count);
    };
    add(chunk.lineCount);
    return {
      acquire: (request) => route.acquire(request, sender),
      lineTaken: () => {
        if (left > 0) add(-1);
        if (hasAsked || this.#atHandCount >= route.slotCount) return;
        hasAsked = true;
        onRoom();
      },
      end: () => {
        add(-left);
        this.#removeIfDone(contender.batchId);
        onRoom();
      },
    };
  }

  #addAtHand(entry: Entry, lineCount: number): void {
    entry.atHandCount += lineCount;
    this.#atHandCount += lineCount;
  }

  #entryOf(contender: Contender): Entry {
    const known = this.#entries.get(contender.batchId);
    if (known !== undefined) return known;
    const flow = this.route.flows.join(contender);
    const entry = { flow, runnable: null, atHandCount: 0, listNumber: 0 };
    this.#entries.set(contender.batchId, entry);
    return entry;
  }

  #removeIfDone(batchId: BatchId): void {
    const entry = this.#entries.get(batchId);
    if (entry === undefined || entry.runnable !== null || entry.atHandCount > 0) return;
    this.route.flows.remove(entry.flow);
    this.#entries.delete(batchId);
  }
}
