/** A result file that cannot be stored: the finalizer has to see why, or a full disk would count against the batch. */
import { setImmediate } from "node:timers/promises";
import { expect, test } from "vitest";
import { newFileId } from "../../../src/batch/batch.ts";
import type { Blobs } from "../../../src/blobs/blobs.ts";
import { ResultWriter } from "../../../src/engine/results/result-writer.ts";
import { isPassing, NotWritten } from "../../../src/engine/steps/failure.ts";

test("a write that fails while more waits to be written is a shortage of the machine", async () => {
  const full = Object.assign(new Error("ENOSPC: no space left on device"), { code: "ENOSPC" });
  const put: Blobs["put"] = async (_key, source) => {
    try {
      for await (const _piece of source) {
        // The writer fills the stream meanwhile, and waits.
        await setImmediate();
        throw full;
      }
    } finally {
      // As the disk removes the half of a file.
      await setImmediate();
    }
    return { bytes: 0 };
  };
  const writer = new ResultWriter({ put } as Blobs, newFileId());
  const row = Buffer.alloc(200_000, "x");
  const failure = await (async () => {
    for (let n = 0; n < 100; n++) await writer.write(row);
  })().catch((error: unknown) => error);
  expect(failure).toBeInstanceOf(NotWritten);
  expect((failure as NotWritten).cause).toBe(full);
  expect(isPassing(failure)).toBe(true);
  await writer.discard();
});
