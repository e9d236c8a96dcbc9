import { expect, test } from "vitest";
import type { InputSummary, ResultSummary } from "../../src/batch/run-summary.ts";
import type { Store } from "../../src/store/store.ts";
import {
  aFile,
  aPlan,
  aResult,
  aSegment,
  claimBy,
  claimChunk,
  claimToFinalize,
  finishBatch,
  insertBatch,
  insertFile,
} from "../support/store-builders.ts";
import type { OpenStore } from "./opened-store.ts";

const NONE = { names: [], others: 0 };
/** Texts that a database may refuse: a NUL, half a character, a key with a meaning. */
const HOSTILE = JSON.parse('{"__proto__":"\\u0000","a":"\\ud800","b":[1.5,null]}') as object;

const INPUT: InputSummary = {
  bytes: 10,
  sha256: "ab",
  lines: 2,
  filename: "in\u0000.jsonl",
  copiedFrom: { location: "share", path: "a/b.jsonl", revision: "v1" },
  models: { names: [{ name: "m\ud800", lines: 2 }], others: 0 },
  parameters: { common: { ...HOSTILE }, large: [], varying: ["__proto__"], left_out: 0 },
};

const RESULTS: ResultSummary = {
  output: { bytes: 5, sha256: "cd", lines: 1 },
  error: null,
  models: NONE,
  fingerprints: NONE,
  upstreams: ["gpu"],
  serverVersion: "1",
};

/** Starts a batch that was inserted, and ends it. */
async function startAndEnd(store: Store): Promise<void> {
  const claimed = await store.claimBatchToValidate(claimBy("validator"));
  if (claimed === null) throw new Error("nothing to validate");
  await store.startBatchIfLeased(claimed.lease, { ...aPlan(), summary: INPUT });
  const { lease } = await claimChunk(store);
  await store.closeChunkIfLeased(lease, aSegment({ completed: 10 }));
  await finishBatch(store, await claimToFinalize(store), aResult({ summary: RESULTS }));
}

async function endedBatch(store: Store) {
  const { batch } = await insertBatch(store);
  await startAndEnd(store);
  return batch;
}

export function testRuns(open: OpenStore): void {
  test("the summaries of a run come back as the commits kept them", async () => {
    const { store } = await open();
    const { id } = await endedBatch(store);
    const run = await store.findRun(id);
    expect(run).toMatchObject({ results: RESULTS, record: null });
    expect(JSON.stringify(run?.input)).toBe(JSON.stringify(INPUT));
  });

  test("the first record of a final batch stays, and an open one has none", async () => {
    const { store } = await open();
    const { id } = (await insertBatch(store)).batch;
    expect(await store.keepRunRecord(id, "too early")).toBeNull();
    await startAndEnd(store);
    const kept = await Promise.all(["one", "two"].map((each) => store.keepRunRecord(id, each)));
    expect(kept[0]).toBe(kept[1]);
    expect(await store.keepRunRecord(id, "three")).toBe(kept[0]);
    expect(await store.findRun(id)).toMatchObject({ results: RESULTS, record: kept[0] });
  });

  test("a deleted batch takes its run with it", async () => {
    const { store } = await open();
    const { id, project } = await endedBatch(store);
    await store.deleteBatchIfPresent({ id, project }, { withInput: false });
    expect(await store.keepRunRecord(id, "too late")).toBeNull();
    await store.forgetBatch(id);
    expect(await store.findRun(id)).toBeNull();
  });

  test("a file knows the location that it was copied from", async () => {
    const { store } = await open();
    const copiedFrom = { location: "share", path: "a.jsonl", revision: null };
    const [copied, other] = [aFile({ copiedFrom }), aFile()];
    for (const file of [copied, other]) await insertFile(store, file);
    expect(await store.findFile(copied)).toMatchObject({ copiedFrom });
    expect(await store.findFile(other)).not.toHaveProperty("copiedFrom");
  });
}
