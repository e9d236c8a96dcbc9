/**
 * Gathers what the run record of a batch says of its results, while they are written. Every row counts, because a sample
 * could miss a model that answered one line.
 */
import { AnswerNameCounts, RowNames } from "../../batch/answer-names.ts";
import type { AnswerNames, Batch, StoredFile } from "../../batch/batch.ts";
import type { ResultKind } from "../../batch/finished-line.ts";
import type { FileSummary, ResultSummary } from "../../batch/run-summary.ts";
import { read } from "../../resources/time-slice.ts";
import type { Store } from "../../store/store.ts";
import type { Upstreams } from "../../upstream/upstream.ts";
import { version } from "../../version.ts";

export interface ResultSummaryDeps {
  readonly store: Pick<Store, "findRun">;
  readonly upstreams: Pick<Upstreams, "findRoute" | "findPeerRoute">;
  readonly fleet: { readonly workers: readonly { readonly owner: string }[] };
}

export class ResultSummaries {
  readonly #names = new AnswerNameCounts();
  readonly #rowNames = new RowNames();
  readonly #lines = { output: 0, error: 0 };

  /**
   * Adds a row, and reads it where the names of its answer are not known. Returns null when it is added already; only a long
   * one takes its time.
   */
  add(kind: ResultKind, row: Buffer, known: AnswerNames | null): Promise<void> | null {
    this.#lines[kind]++;
    if (kind === "error") return null;
    const names = known ?? read(this.#rowNames, row);
    if (names instanceof Promise) return names.then((found) => this.#names.add(found));
    this.#names.add(names);
    return null;
  }

  async finish(
    batch: Batch,
    { output, error }: { readonly output: StoredFile | null; readonly error: StoredFile | null },
    deps: ResultSummaryDeps,
  ): Promise<ResultSummary> {
    return {
      output: summaryOf(output, this.#lines.output),
      error: summaryOf(error, this.#lines.error),
      ...this.#names.finish(),
      upstreams: await upstreamsOf(batch, deps),
      serverVersion: version,
    };
  }
}

const summaryOf = (file: StoredFile | null, lines: number): FileSummary | null =>
  file === null ? null : { bytes: file.bytes, sha256: file.sha256, lines };

/** The key of a route names its targets. They may be configured at another replica only. */
async function upstreamsOf(
  { id, model }: Batch,
  { store, upstreams, fleet }: ResultSummaryDeps,
): Promise<string[]> {
  const run = await store.findRun(id);
  const models = run?.input?.models.names.map(({ name }) => name) ?? [model ?? ""];
  const keys = models.flatMap((name) => [
    upstreams.findRoute(name)?.key,
    ...fleet.workers.map(({ owner }) => upstreams.findPeerRoute(owner, name)?.key),
  ]);
  const names = keys.flatMap((key) => key?.split(",") ?? []);
  return [...new Set(names)].sort();
}
