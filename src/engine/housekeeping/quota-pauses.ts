/** Lets batches go on that a quota of their project had paused: on the next day, in the next month, or with another limit. */
import { dayOf } from "../../batch/model-usage.ts";
import type { RulesOf } from "../../batch/project.ts";
import { timeForMore } from "../../resources/time-slice.ts";
import { mayGoOn } from "../../store/spending.ts";
import type { Store } from "../../store/store.ts";
import type { Log } from "../../telemetry/log.ts";

export interface QuotaPausesDeps {
  readonly store: Pick<Store, "listQuotaPauses" | "resumeBatchIfPaused">;
  readonly rulesOf: RulesOf;
  readonly log: Log;
  /** The callback for batches whose lines may go out again. */
  readonly onResumed: () => void;
}

/** So many batches go on in a pass. The windows that end meanwhile wait for its end. */
const MAX_RESUMED = 500;

interface Pass {
  readonly nowMs: number;
  /** Whether the server is closing: what is left can wait for its next start. */
  readonly isDraining: () => boolean;
}

/** Returns whether more of them may go on at once. */
export async function endQuotaPauses(
  { store, rulesOf, log, onResumed }: QuotaPausesDeps,
  { nowMs, isDraining }: Pass,
): Promise<boolean> {
  const today = dayOf(nowMs);
  let resumedCount = 0;
  const isOver = () => isDraining() || resumedCount === MAX_RESUMED;
  for (let after = 0; !isOver(); ) {
    const page = await store.listQuotaPauses(after);
    for (const pause of page) {
      if (isOver()) break;
      after = pause.sequence;
      // A new day may let 100,000 batches go on, each in a commit.
      const wait = timeForMore();
      if (wait !== null) await wait;
      const { batchId: id, project, reason } = pause;
      if (!mayGoOn(pause, rulesOf(project).quotas, today)) continue;
      if (!(await store.resumeBatchIfPaused({ project, id }, reason))) continue;
      log.info({ batch: id, project, reason }, "batch.resumed");
      resumedCount++;
    }
    if (page.length === 0) break;
  }
  if (resumedCount > 0) onResumed();
  return resumedCount === MAX_RESUMED;
}
