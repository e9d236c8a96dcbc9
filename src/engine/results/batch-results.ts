/**
 * The two result files of a batch while they are written, and what is counted of their rows on the way: the lines that
 * were answered or failed, the groups of failures, and what the run record says.
 *
 * Results that are not finished must be discarded, or their sources would stay open.
 */
import type { AnswerNames, Batch, FileId, StoredFile } from "../../batch/batch.ts";
import { addFailures, type FailureGroup } from "../../batch/failures.ts";
import type { ResultKind } from "../../batch/finished-line.ts";
import { failureIn, failureInHead } from "../../batch/row-failure.ts";
import type { BlobReader, Blobs } from "../../blobs/blobs.ts";
import type { BatchResult } from "../../store/finalizing.ts";
import type { Row, RowPlace } from "./chunk-records.ts";
import { ResultSummaries, type ResultSummaryDeps } from "./result-summary.ts";
import { ResultWriter, resultBlobKey, type WrittenBlob } from "./result-writer.ts";

/** The ids that the files will have. */
export interface ResultIds {
  readonly output: FileId;
  readonly error: FileId;
}

interface FileLife {
  readonly nowMs: number;
  readonly lifetimeSeconds: number;
}

export class BatchResults {
  readonly #ids: ResultIds;
  readonly #writers: Readonly<Record<ResultKind, ResultWriter>>;
  readonly #summaries = new ResultSummaries();
  readonly #counts = { completed: 0, failed: 0 };
  #failures: readonly FailureGroup[] = [];

  constructor(blobs: Blobs, ids: ResultIds) {
    this.#ids = ids;
    this.#writers = {
      output: new ResultWriter(blobs, ids.output),
      error: new ResultWriter(blobs, ids.error),
    };
  }

  /** Adds the row of a line of the batch. Returns null when there is room for more right away. */
  add(row: Row, journal: BlobReader): Promise<void> | null {
    const { kind, bytes, rest, isDuplicate, names = null } = row;
    if (kind !== "not_run") this.#counts[kind]++;
    // Failures of lines that were sent are in the journal.
    if (isDuplicate && kind === "failed") this.#countFailure(row);
    const file = kind === "completed" ? "output" : "error";
    if (rest === undefined) return this.#write(file, bytes, names);
    return this.#writeLong(file, { bytes, rest, names, journal });
  }

  /** Adds a row that a retry takes over from its source. The source has counted it. */
  addKept(file: ResultKind, row: Buffer): Promise<void> | null {
    return this.#write(file, row, null);
  }

  async finish(
    batch: Batch,
    life: FileLife,
    deps: ResultSummaryDeps,
  ): Promise<Omit<BatchResult, "announcements" | "lostBlobKeys">> {
    const fileOf = (kind: ResultKind) =>
      this.#writers[kind].finish((blob) => resultFile(batch, kind, { ...blob, ...life }));
    const files = { output: await fileOf("output"), error: await fileOf("error") };
    return {
      ...files,
      unusedBlobKeys: (["output", "error"] as const).flatMap((kind) =>
        files[kind] === null ? [resultBlobKey(this.#ids[kind])] : [],
      ),
      counts: this.#counts,
      summary: await this.#summaries.finish(batch, files, deps),
      failures: this.#failures,
    };
  }

  async discard(): Promise<void> {
    await Promise.all([this.#writers.output.discard(), this.#writers.error.discard()]);
  }

  #countFailure({ bytes, rest }: Row): void {
    const { failure } = rest === undefined ? failureIn(bytes) : failureInHead(bytes);
    this.#failures = addFailures(this.#failures, [{ ...failure, count: 1 }]);
  }

  #write(file: ResultKind, row: Buffer, names: AnswerNames | null): Promise<void> | null {
    const added = this.#summaries.add(file, row, names);
    const write = () => this.#writers[file].write(row);
    return added === null ? write() : added.then(async () => void (await write()));
  }

  async #writeLong(
    file: ResultKind,
    { bytes, rest, names, journal }: LongRow & { readonly journal: BlobReader },
  ): Promise<void> {
    // Only the journal of an older version has answers without names.
    const isUnread = file === "output" && names === null;
    const text = isUnread
      ? Buffer.concat([bytes, await journal.readRange(rest.blobKey, rest)])
      : bytes;
    await this.#summaries.add(file, text, names);
    await this.#writers[file].write(bytes);
    await this.#writers[file].copy(journal, rest);
  }
}

/** A row whose end was left in the journal. */
interface LongRow {
  readonly bytes: Buffer;
  readonly rest: RowPlace;
  readonly names: AnswerNames | null;
}

function resultFile(
  batch: Batch,
  kind: ResultKind,
  { nowMs, lifetimeSeconds, ...blob }: WrittenBlob & FileLife,
): StoredFile {
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
