/**
 * The records of runs. A record is made when it is first asked for, by a client or for a delivery, and is kept from then on:
 * it has the same bytes each time, although metadata may change and files may be deleted.
 */
import type { Batch, BatchId, ScopedId } from "../batch/batch.ts";
import { isFinal } from "../batch/status.ts";
import { PublicError } from "../errors.ts";
import { findFilesOf } from "../store/files.ts";
import type { Store } from "../store/store.ts";
import type { BatchCost } from "./batch-costs.ts";
import type { Batches } from "./batches.ts";
import { composeRunRecord } from "./run-record.ts";

export interface RecordDeps {
  readonly store: Pick<Store, "findRun" | "keepRunRecord" | "findFile">;
  readonly costsFor: (batches: readonly Batch[]) => Promise<ReadonlyMap<BatchId, BatchCost>>;
}

export interface RunsDeps extends RecordDeps {
  readonly batches: Pick<Batches, "find">;
}

export class Runs {
  readonly #deps: RunsDeps;

  constructor(deps: RunsDeps) {
    this.#deps = deps;
  }

  /** Returns the content of `run.json` for a batch that a client names. */
  async find(asked: ScopedId<"batch">): Promise<Buffer> {
    const batch = await this.#deps.batches.find(asked);
    if (!isFinal(batch.status)) {
      throw new PublicError(
        "conflict",
        `A batch with status '${batch.status}' has no run record yet. It has one once it has ended.`,
      );
    }
    const record = await runRecordOf(batch, this.#deps);
    if (record !== null) return record;
    // It was deleted after it was found.
    throw new PublicError("not_found", `No batch found with id '${batch.id}'.`);
  }
}

/** Returns the content of `run.json` for a final batch; null when it is gone. */
export async function runRecordOf(batch: Batch, deps: RecordDeps): Promise<Buffer | null> {
  const run = await deps.store.findRun(batch.id);
  const kept = run?.record ?? (await keepRecord(batch, run, deps));
  return kept === null ? null : Buffer.from(kept);
}

async function keepRecord(
  batch: Batch,
  run: Awaited<ReturnType<Store["findRun"]>>,
  { store, costsFor }: RecordDeps,
): Promise<string | null> {
  const { project } = batch;
  const files = await findFilesOf(store, project, {
    input: batch.inputFileId,
    output: batch.outputFileId,
    error: batch.errorFileId,
  });
  const cost = (await costsFor([batch])).get(batch.id) ?? null;
  const record = composeRunRecord({ batch, run, cost, files });
  return store.keepRunRecord(batch.id, `${JSON.stringify(record, null, 2)}\n`);
}
