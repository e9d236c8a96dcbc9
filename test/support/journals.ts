import type { Batch } from "../../src/batch/batch.ts";
import { Planner } from "../../src/batch/plan.ts";
import { journalWindows, type WindowsQuery } from "../../src/engine/results/journal-windows.ts";
import type { Store } from "../../src/store/store.ts";
import { aPlan, claimBy, insertBatch } from "./store-builders.ts";

const LINE_BYTES = 10;

/**
 * Starts a batch with one line for each of `models`, of which a sample is spread over it. No other batch may wait for
 * validation.
 */
export async function startLines(
  store: Store,
  models: readonly string[],
  { maxLines, isSampled = () => false }: { maxLines: number; isSampled?: (i: number) => boolean },
): Promise<Batch> {
  const planner = new Planner({ unitLines: maxLines, maxLines, maxBytes: Number.MAX_SAFE_INTEGER });
  for (const [i, model] of models.entries()) {
    planner.add({
      number: i + 1,
      shift: 0,
      model,
      routeKey: model,
      isSampled: isSampled(i),
      start: i * LINE_BYTES,
      end: (i + 1) * LINE_BYTES,
    });
  }
  const sample = models.filter((_, i) => isSampled(i)).length || null;
  const { batch } = await insertBatch(store, { sample });
  const claimed = await store.claimBatchToValidate(claimBy("validator"));
  if (claimed?.batch.id !== batch.id) throw new Error("another batch waits for validation");
  const plan = { ...aPlan(), ...planner.finish(), total: models.length, sampleChunkCount: null };
  if (!(await store.startBatchIfLeased(claimed.lease, plan))) throw new Error("not started");
  return batch;
}

/** Resolves to the lines that a reader finds in the windows, and to the number of chunks in them. */
export async function linesInWindows(
  batch: Batch,
  query: WindowsQuery & { readonly untilLine?: number },
): Promise<{ readonly lines: readonly number[]; readonly chunkCount: number }> {
  const { afterLine, untilLine = Number.POSITIVE_INFINITY } = query;
  const lines: number[] = [];
  let chunkCount = 0;
  let firstLine = afterLine + 1;
  for await (const { journals, endLine } of journalWindows(batch, query)) {
    chunkCount += journals.length;
    const found = journals
      .flatMap(({ chunk }) => chunk.extents)
      .flatMap(({ firstLine: first, start, end }) =>
        Array.from({ length: (end - start) / LINE_BYTES }, (_, i) => first + i),
      )
      .filter((line) => line >= firstLine && line < endLine);
    lines.push(...found.sort((a, b) => a - b));
    firstLine = endLine;
    if (endLine > untilLine) break;
  }
  return { lines, chunkCount };
}
