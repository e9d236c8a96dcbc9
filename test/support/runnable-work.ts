/** Routes and batches with work for them, for tests of who comes next. */
import type { BatchId } from "../../src/batch/batch.ts";
import { FairQueue } from "../../src/batch/fair-queue.ts";
import type { RunnableChunks } from "../../src/store/chunks.ts";
import type { UpstreamRequest } from "../../src/upstream/request.ts";
import type { LineSender, Route } from "../../src/upstream/upstream.ts";

export const CHUNK_LINES = 512;
export const standing = { isAtRisk: () => false, projectWeightOf: () => 1 };

/** What is asked here is only who comes next: no line waits for a slot. */
export function aRoute(fields: Partial<Route> = {}): Route {
  const flows = new FairQueue();
  const acquire = (_request: UpstreamRequest, { flow }: LineSender) => {
    flows.charge(flow);
    return { release: () => {} };
  };
  return {
    key: "llama",
    opensAtMs: 0,
    isInDoubt: false,
    slotCount: 0,
    flows,
    acquire,
    ...fields,
  } as unknown as Route;
}

let count = 0;

export function someWork(fields: Partial<RunnableChunks> = {}): RunnableChunks {
  const number = ++count;
  const remainingLineCount = fields.remainingLineCount ?? 50_000;
  return {
    batchId: `batch_${number}` as BatchId,
    project: "one",
    priority: 0,
    createdAtMs: number,
    deadlineAtMs: 1_000_000 + number,
    model: "llama",
    nextLineCount: Math.min(remainingLineCount, CHUNK_LINES),
    remainingLineCount,
    ...fields,
  };
}
