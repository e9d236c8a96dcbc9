/**
 * Starts the run of a claimed chunk: takes its lease and its memory, and gives both back when the run ends.
 *
 * The scheduler decides which chunk is claimed and calls this file; `chunk-runner.ts` turns the lines of the chunk
 * into records. A run that fails is logged and counted against its chunk. Its lease must run out, so that a chunk
 * that fails again and again is not tried in a tight loop.
 */
import type { ClaimedChunk } from "../../store/chunks.ts";
import type { ChunkEnd, ChunkStart, RunningChunk } from "../dispatch/running-chunk.ts";
import { isPassing } from "../steps/failure.ts";
import type { Leases } from "../steps/lease.ts";
import type { Stalls } from "../steps/stalls.ts";
import { type ChunkRunnerDeps, runChunk } from "./chunk-runner.ts";

interface ChunkStartDeps extends ChunkRunnerDeps {
  readonly leases: Leases;
  readonly stalls: Stalls;
}

const bytesOf = ({ chunk }: ClaimedChunk) =>
  chunk.extents.reduce((sum, { start, end }) => sum + end - start, 0);

export function startChunk(start: ChunkStart, deps: ChunkStartDeps): RunningChunk {
  const { log, leases, clock, memory, stalls } = deps;
  const { claimed, route } = start;
  const { batch, chunk, lease } = claimed;
  const fields = { batch: batch.id, chunk: chunk.number, route: route.key };
  log.debug(fields, "chunk.claimed");
  const room = memory.open("lines", batch.project);
  // The scheduler asks whether memory is full before it claims a chunk.
  void room.add(bytesOf(claimed));
  const run = leases.holdChunk(lease, batch.budget);
  stalls.begin(lease, run.watch);
  const work = async (): Promise<ChunkEnd> => {
    try {
      await runChunk({ ...start, run, handOut: start.handOut(run.stop) }, deps);
    } catch (err) {
      // Without the lease, the sweep may have removed what the run reads.
      const isLost = run.endReason === "lease";
      if (isLost) log.debug({ ...fields, ended: "lease", err }, "chunk.ended");
      else log.error({ ...fields, err }, "chunk.failed");
      if (run.endReason === null) {
        stalls.noteFailure(lease, err);
        await countFailure(err, claimed, deps);
      }
    } finally {
      stalls.end(run.watch);
      leases.endChunkRun(lease);
      room.release();
    }
    if (run.endReason === null) return "done";
    return run.endReason === "batch" ? "stopped" : "early";
  };
  return { ended: work(), reroute: () => run.end("reroute", null, clock) };
}

/**
 * Counts a failure of the chunk. A failure that cannot be counted because the store is away is not the chunk's own.
 */
async function countFailure(
  err: unknown,
  { lease }: ClaimedChunk,
  { store, log }: ChunkStartDeps,
): Promise<void> {
  if (isPassing(err)) return;
  await store.countChunkFailureIfLeased(lease).catch((cause: unknown) => {
    log.warn({ batch: lease.batchId, chunk: lease.chunkNumber, err: cause }, "failure.not_counted");
  });
}
