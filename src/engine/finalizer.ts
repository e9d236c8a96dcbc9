/**
 * The last step: journals become the output and the error file, and the batch its final status.
 *
 * Both blobs are written first, under the ids of the files to be; then one commit, guarded by the
 * lease, publishes the files and the status. A crash before the commit leaves two blobs without rows, which the
 * sweeper removes, and the next holder of the lease writes them again from the same journals.
 */
import { createHash } from "node:crypto";
import { once } from "node:events";
import { PassThrough } from "node:stream";
import { type Batch, type FileId, newFileId, type StoredFile } from "../batch/batch.ts";
import type { Blobs } from "../blobs/blobs.ts";
import type { Clock } from "../clock.ts";
import type { EventType } from "../contract/event.ts";
import type { Log } from "../log.ts";
import type { Metrics } from "../metrics.ts";
import type { Announcement } from "../store/deliveries.ts";
import type { ClaimedBatch, ResultFiles, Store } from "../store/store.ts";
import { type Attributes, during, type Tracing } from "../tracing.ts";
import type { Leases, Run } from "./lease.ts";
import { mergeRows } from "./merge.ts";

/** Result files expire after 30 days unless the client chose otherwise. */
const RESULT_LIFETIME_SECONDS = 30 * 24 * 60 * 60;

export interface FinalizerDeps {
  readonly store: Store;
  readonly blobs: Blobs;
  readonly clock: Clock;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly tracing: Tracing;
  readonly leases: Leases;
  readonly announcementsFor: (batch: Batch) => Announcement[];
  /** Told when a batch is final and its journal may go. */
  readonly onFinal: () => void;
}

/** Finishes one batch whose chunks are all closed; false when there is none. */
export async function finalizeNext(deps: FinalizerDeps): Promise<boolean> {
  const { store, leases } = deps;
  const claimed = await store.claimBatchToFinalize(await leases.claim());
  if (claimed === null) return false;
  const run = leases.holdBatch(claimed.lease);
  const { id, traceparent: parent } = claimed.batch;
  const attributes = { "batchd.batch.id": id };
  const span = deps.tracing.start("batch.finalize", { parent, attributes });
  try {
    await during(
      span,
      () => finalize(claimed, run, deps),
      (ended) => ended ?? {},
    );
  } finally {
    leases.dropBatch(claimed.lease);
  }
  return true;
}

/** Resolves to how the batch has ended; null when this was not to end it. */
async function finalize(
  claimed: ClaimedBatch,
  run: Run,
  deps: FinalizerDeps,
): Promise<Attributes | null> {
  const { store, clock, log, metrics, announcementsFor, onFinal } = deps;
  const { lease, batch } = claimed;
  const files = await writeResults(claimed, run, deps);
  if (files === null) {
    if (await store.releaseBatchIfLeased(lease)) metrics.leaseChanged("batch", "released");
    return null;
  }
  const result = { ...files, announcements: announcementsFor(batch) };
  if (!(await store.finishBatchIfLeased(lease, result, clock.nowMs()))) {
    await discard(files, deps.blobs);
    return null;
  }
  metrics.leaseChanged("batch", "closed");
  onFinal();
  // It may have been cancelled since it was claimed.
  const { status, counts } = (await store.findBatch(batch)) ?? batch;
  metrics.batchEnded(batch, status, batch.expiresAtMs - clock.nowMs());
  const [output, error] = [files.output?.id ?? null, files.error?.id ?? null];
  log.info({ batch: batch.id, ...counts, output, error }, `batch.${status}` as EventType);
  return {
    "batchd.batch.status": status,
    "batchd.output_file.id": output,
    "batchd.error_file.id": error,
  };
}

async function discard({ output, error }: ResultFiles, blobs: Blobs): Promise<void> {
  for (const file of [output, error]) if (file !== null) await blobs.delete(file.blobKey);
}

/** Null when the run is to end first. */
async function writeResults(
  { batch, input }: ClaimedBatch,
  run: Run,
  { store, blobs, clock }: FinalizerDeps,
): Promise<ResultFiles | null> {
  const output = new ResultWriter(blobs);
  const error = new ResultWriter(blobs);
  const options = { blobs, inputBlobKey: input?.blobKey ?? "", stopReason: batch.stopReason };
  try {
    const journals = await store.listChunkJournals(batch.id);
    for await (const rows of mergeRows(journals, options)) {
      if (run.stop.aborted) {
        await Promise.all([output.abandon(), error.abandon()]);
        return null;
      }
      for (const { succeeded, bytes } of rows) {
        const room = (succeeded ? output : error).write(bytes);
        if (room !== null) await room;
      }
    }
    const nowMs = clock.nowMs();
    return {
      output: await output.finish((blob) => resultFile(batch, "output", { ...blob, nowMs })),
      error: await error.finish((blob) => resultFile(batch, "error", { ...blob, nowMs })),
    };
  } catch (cause) {
    await Promise.all([output.abandon(), error.abandon()]);
    throw cause;
  }
}

interface WrittenBlob {
  readonly id: FileId;
  readonly blobKey: string;
  readonly bytes: number;
  readonly sha256: string;
}

function resultFile(
  batch: Batch,
  kind: "output" | "error",
  { nowMs, ...blob }: WrittenBlob & { nowMs: number },
): StoredFile {
  const lifetimeSeconds = batch.outputExpiresAfterSeconds ?? RESULT_LIFETIME_SECONDS;
  return {
    ...blob,
    project: batch.project,
    purpose: "batch_output",
    filename: `${batch.id}_${kind}.jsonl`,
    createdAtMs: nowMs,
    expiresAtMs: nowMs + lifetimeSeconds * 1000,
    traceparent: batch.traceparent,
  };
}

/** Rows are gathered to this size before they are handed on: small writes cost more than the copy. */
const WRITE_BYTES = 256 * 1024;

/** One result blob, begun with its first row: a file that would be empty is never made. */
class ResultWriter {
  readonly #blobs: Blobs;
  readonly #hash = createHash("sha256");
  #id: FileId | null = null;
  #stream: PassThrough | null = null;
  #stored: Promise<{ bytes: number }> | null = null;
  #gathered: Buffer[] = [];
  #gatheredBytes = 0;

  constructor(blobs: Blobs) {
    this.#blobs = blobs;
  }

  /** Null when there is room for more right away. */
  write(row: Buffer): Promise<void> | null {
    this.#gathered.push(row);
    this.#gatheredBytes += row.length;
    return this.#gatheredBytes < WRITE_BYTES ? null : this.#pass();
  }

  async finish(describe: (blob: WrittenBlob) => StoredFile): Promise<StoredFile | null> {
    if (this.#gatheredBytes > 0) await this.#pass();
    if (this.#stream === null || this.#id === null || this.#stored === null) return null;
    this.#stream.end();
    const { bytes } = await this.#stored;
    const blobKey = resultBlobKey(this.#id);
    return describe({ id: this.#id, blobKey, bytes, sha256: this.#hash.digest("hex") });
  }

  /** Leaves nothing behind, whether or not the blob was finished. */
  async abandon(): Promise<void> {
    if (this.#stream === null || this.#id === null) return;
    this.#stream.destroy(new Error("abandoned"));
    await this.#stored?.catch(() => {});
    await this.#blobs.delete(resultBlobKey(this.#id));
  }

  async #pass(): Promise<void> {
    const bytes = Buffer.concat(this.#gathered);
    this.#gathered = [];
    this.#gatheredBytes = 0;
    this.#hash.update(bytes);
    const stream = this.#open();
    if (!stream.write(bytes)) await Promise.race([once(stream, "drain"), this.#stored]);
  }

  #open(): PassThrough {
    if (this.#stream === null) {
      this.#id = newFileId();
      this.#stream = new PassThrough({ highWaterMark: 4 * WRITE_BYTES });
      this.#stored = this.#blobs.put(resultBlobKey(this.#id), this.#stream);
      // Awaited in `finish`; a failure before that surfaces in `#pass`.
      this.#stored.catch(() => {});
      this.#stream.on("error", () => {});
    }
    return this.#stream;
  }
}

const resultBlobKey = (id: FileId) => `files/${id}`;
