/**
 * One route as the scheduler sees it: which batches contend for it, which of them have a chunk that is handing out
 * its lines, and which is to have its next chunk claimed.
 *
 * A chunk is claimed before there is room for its lines, because it is the turns that share the room: a batch that
 * has no chunk here has no part in them. So that the chunks at hand stay few, a batch has one at a time, and of each
 * project only some batches have one. Half of these places are for batches with few lines left: they are in and
 * out again while the others wait for the end of a long chunk.
 */
import type { BatchId } from "../../batch/batch.ts";
import { inSlices } from "../../resources/time-slice.ts";
import type { RunnableChunks } from "../../store/store.ts";
import type { Route } from "../../upstream/upstream.ts";
import { Turns } from "./fair-admission.ts";
import { type Contender, FairQueue, type Flow } from "./fair-queue.ts";

/** Batches of a project that hand out lines to one route at the same time; as many again with few lines left. */
const MAX_HANDING_OUT = 16;
const FEW_LINES = 64;

/** A batch that contends for the route. */
interface Entry {
  readonly flow: Flow;
  /** Null when there is nothing to claim. */
  runnable: RunnableChunks | null;
  isHandingOut: boolean;
  /** The list that named it last. */
  listNumber: number;
}

/** A chunk's right to hand out lines. */
export interface HandOut {
  /** As the route's own, but in fair order. */
  readonly admit: () => boolean | Promise<boolean>;
  /** The last line has been taken on. */
  readonly end: () => void;
}

export class RouteQueue {
  readonly route: Route;
  /** By project: chunks that are open here, handing out lines or waiting for the answers. */
  readonly #openChunkCounts = new Map<string, number>();
  readonly #share = new FairQueue();
  readonly #turns: Turns;
  readonly #entries = new Map<BatchId, Entry>();
  /** Lists of what there is to claim, until now. */
  #listCount = 0;

  constructor(route: Route) {
    this.route = route;
    this.#turns = new Turns(route, this.#share);
  }

  get openChunkCount(): number {
    return this.#openChunkCounts.values().reduce((sum, count) => sum + count, 0);
  }

  get isIdle(): boolean {
    return this.#entries.size === 0 && this.openChunkCount === 0;
  }

  chunkOpened(project: string): void {
    this.#openChunkCounts.set(project, this.#openChunkCountOf(project) + 1);
  }

  chunkEnded(project: string): void {
    const left = this.#openChunkCountOf(project) - 1;
    if (left > 0) this.#openChunkCounts.set(project, left);
    else this.#openChunkCounts.delete(project);
  }

  takeHadToWait(): boolean {
    return this.#turns.takeHadToWait();
  }

  /** What there is to claim, as far as the store knows; in slices. */
  async update(
    listed: readonly RunnableChunks[],
    isAtRisk: (batchId: BatchId) => boolean,
  ): Promise<void> {
    this.#listCount++;
    for await (const group of inSlices(listed)) {
      for (const runnable of group) {
        const entry = this.#entryOf(runnable);
        entry.runnable = runnable;
        entry.listNumber = this.#listCount;
        entry.flow.chunkLineCount = runnable.nextLineCount;
      }
    }
    for await (const group of inSlices([...this.#entries])) {
      for (const [batchId, entry] of group) {
        // Until here what the last list named stays: a batch that is named again keeps its place in the share.
        if (entry.listNumber !== this.#listCount) entry.runnable = null;
        entry.flow.isAtRisk = isAtRisk(batchId);
        this.#leaveIfDone(batchId);
      }
    }
  }

  /**
   * The batch that is to have its next chunk claimed; null when none may now. While the memory for open chunks is full,
   * only of a project that has none here: it is not to wait until large chunks of others have ended.
   */
  next(memory: "free" | "full"): RunnableChunks | null {
    const handingOut = new Map<string, number>();
    const waiting: Flow[] = [];
    for (const { flow, isHandingOut } of this.#entries.values()) {
      if (!isHandingOut) continue;
      const { project } = flow.contender;
      handingOut.set(project, (handingOut.get(project) ?? 0) + 1);
    }
    for (const { flow, runnable, isHandingOut } of this.#entries.values()) {
      if (runnable === null || isHandingOut) continue;
      if (memory === "full" && this.#openChunkCountOf(runnable.project) > 0) continue;
      const placeCount =
        runnable.remainingLineCount <= FEW_LINES ? 2 * MAX_HANDING_OUT : MAX_HANDING_OUT;
      if ((handingOut.get(runnable.project) ?? 0) < placeCount) waiting.push(flow);
    }
    const flow = this.#share.takeChunk(waiting);
    return flow === null ? null : (this.#entries.get(flow.contender.batchId)?.runnable ?? null);
  }

  /** It turned out that the batch has nothing to claim. */
  forget({ batchId }: RunnableChunks): void {
    const entry = this.#entries.get(batchId);
    if (entry === undefined) return;
    entry.runnable = null;
    this.#leaveIfDone(batchId);
  }

  /** A chunk of the batch is to hand out its lines, until `stop` aborts. */
  startHandOut(
    contender: Contender,
    { stop, onEnd }: { readonly stop: AbortSignal; readonly onEnd: () => void },
  ): HandOut {
    const entry = this.#entryOf(contender);
    entry.isHandingOut = true;
    return {
      admit: this.#turns.admissionsOf(entry.flow, stop),
      end: () => {
        entry.isHandingOut = false;
        this.#turns.leave(entry.flow);
        this.#leaveIfDone(contender.batchId);
        onEnd();
      },
    };
  }

  #openChunkCountOf(project: string): number {
    return this.#openChunkCounts.get(project) ?? 0;
  }

  #entryOf(contender: Contender): Entry {
    const known = this.#entries.get(contender.batchId);
    if (known !== undefined) return known;
    const flow = this.#share.join(contender);
    const entry = { flow, runnable: null, isHandingOut: false, listNumber: 0 };
    this.#entries.set(contender.batchId, entry);
    return entry;
  }

  #leaveIfDone(batchId: BatchId): void {
    const entry = this.#entries.get(batchId);
    if (entry === undefined || entry.runnable !== null || entry.isHandingOut) return;
    this.#share.leave(entry.flow);
    this.#entries.delete(batchId);
  }
}
