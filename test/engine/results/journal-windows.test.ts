/** A reader of a journal learns that its batch has ended, instead of finding no more lines. */
import { join } from "node:path";
import { expect, test } from "vitest";
import { JournalOver, journalWindows } from "../../../src/engine/results/journal-windows.ts";
import { openSqliteStore } from "../../../src/store/sqlite/store.ts";
import { FakeClock } from "../../support/fake-clock.ts";
import { linesInWindows, startLines } from "../../support/journals.ts";
import {
  aSegment,
  claimBy,
  claimToFinalize,
  finishBatch,
  NOW_MS,
  temporaryFolder,
} from "../../support/store-builders.ts";

const LINES = 100;

test("windows become longer, have every line once, and end with an error once the batch has ended", async () => {
  using dir = temporaryFolder("batchd-windows-");
  const path = join(dir.path, "batchd.sqlite");
  const opened = await openSqliteStore({ path, clock: new FakeClock(NOW_MS) });
  if (!opened.ok) throw new Error(opened.problem);
  const { store } = opened;
  const batch = await startLines(store, Array<string>(LINES).fill("a"), { maxLines: 1 });
  const query = { afterLine: 10, part: "all" as const, store };
  const { lines } = await linesInWindows(batch, query);
  expect(lines).toEqual(Array.from({ length: LINES - 10 }, (_, i) => i + 11));

  const end = async () => {
    const wanted = [{ batchId: batch.id, model: "a", count: LINES }];
    for (const { lease } of await store.claimChunks({ ...claimBy("us"), wanted })) {
      await store.closeChunkIfLeased(lease, aSegment());
    }
    await finishBatch(store, await claimToFinalize(store));
  };
  const sizes: number[] = [];
  const read = async () => {
    for await (const { journals } of journalWindows(batch, query)) {
      if (sizes.push(journals.length) === 3) await end();
    }
  };
  await expect(read()).rejects.toThrow(JournalOver);
  expect(sizes).toHaveLength(3);
  expect(sizes).toEqual(sizes.toSorted((a, b) => a - b));
  await store.close();
});
