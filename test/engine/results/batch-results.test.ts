import { Readable } from "node:stream";
import { text } from "node:stream/consumers";
import { expect, test } from "vitest";
import { NO_USAGE, newFileId } from "../../../src/batch/batch.ts";
import { noAnswerLine, outcomeLine } from "../../../src/batch/outcome.ts";
import { BatchResults } from "../../../src/engine/results/batch-results.ts";
import { openBlobFolder } from "../../support/blob-folder.ts";
import { aBatch, NOW_MS } from "../../support/store-builders.ts";

const DEPS = {
  store: { findRun: async () => null },
  upstreams: { findRoute: () => null, findPeerRoute: () => null },
  fleet: { workers: [] },
};
const LIFE = { nowMs: NOW_MS, lifetimeSeconds: 60 };

const line = (number: number) => ({ lineNumber: number, customId: Buffer.from(`"${number}"`) });

const answerOf = (number: number, model: string): Buffer =>
  Buffer.concat([
    ...outcomeLine(line(number), {
      kind: "answered",
      status: 200,
      requestId: "r",
      body: Buffer.from(JSON.stringify({ model })),
      usage: NO_USAGE,
    }),
  ]);

const EXPIRED = { code: "batch_expired", message: "too late" } as const;

test("each row is in the file of its kind, in the order in which it came, and counted once", async () => {
  using folder = await openBlobFolder();
  const { blobs } = folder;
  const ids = { output: newFileId(), error: newFileId() };
  const results = new BatchResults(blobs, ids);
  const answer = answerOf(1, "a");
  const failed = noAnswerLine(line(2), EXPIRED);
  const kept = answerOf(3, "b");
  await results.add({ lineNumber: 1, kind: "completed", bytes: answer }, blobs);
  await results.add({ lineNumber: 2, kind: "not_run", bytes: failed }, blobs);
  await results.addKept("output", kept);
  await results.add({ lineNumber: 4, kind: "failed", bytes: failed, isDuplicate: true }, blobs);
  const { output, error, counts, failures, unusedBlobKeys, summary } = await results.finish(
    aBatch(),
    LIFE,
    DEPS,
  );

  const read = async (key = "") => text(Readable.from(blobs.read(key)));
  expect(await read(output?.blobKey)).toBe(`${answer}${kept}`);
  expect(await read(error?.blobKey)).toBe(`${failed}${failed}`);
  expect(output).toMatchObject({ id: ids.output, expiresAtMs: NOW_MS + 60_000 });
  expect(counts).toEqual({ completed: 1, failed: 1 });
  expect(failures).toMatchObject([{ code: "batch_expired", count: 1 }]);
  expect(unusedBlobKeys).toEqual([]);
  expect(summary).toMatchObject({ output: { lines: 2 }, error: { lines: 2 } });
  expect(summary?.models.names).toEqual([
    { name: "a", lines: 1 },
    { name: "b", lines: 1 },
  ]);
});

test("the end of a long row comes from the journal, and a file without rows is never made", async () => {
  using folder = await openBlobFolder();
  const { blobs } = folder;
  const ids = { output: newFileId(), error: newFileId() };
  const results = new BatchResults(blobs, ids);
  const answer = answerOf(1, "a");
  await blobs.putBytes("segments/one", [answer]);
  const rest = { blobKey: "segments/one", start: 10, end: answer.length };
  const long = { lineNumber: 1, kind: "completed", bytes: answer.subarray(0, 10), rest } as const;
  await results.add(long, blobs);
  const { output, error, unusedBlobKeys, summary } = await results.finish(aBatch(), LIFE, DEPS);

  expect(await text(Readable.from(blobs.read(output?.blobKey ?? "")))).toBe(String(answer));
  expect(error).toBeNull();
  expect(unusedBlobKeys).toEqual([`files/${ids.error}`]);
  expect(summary?.models.names).toEqual([{ name: "a", lines: 1 }]);
});
