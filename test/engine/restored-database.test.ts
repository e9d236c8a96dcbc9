/** A database that was restored beside newer files, as after damage: its claims are made a second time. */
import { copyFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import Database from "better-sqlite3";
import { expect, test } from "vitest";
import { openStorage } from "../../src/runtime/storage/storage.ts";
import { GatedBlobs } from "../support/gated-blobs.ts";
import { chatLines, type ServiceOptions, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const LINES = 4;

test("the sweep of what a backup does not know takes no answer of the work that goes on from it", async () => {
  using folder = temporaryFolder("batchd-restored-");
  await using upstream = await startUpstream();
  const [dataDir, backup] = [join(folder.path, "data"), join(folder.path, "backup.sqlite")];
  const options: ServiceOptions = {
    dataDir,
    config: {
      upstreams: [
        { name: "one", base_url: upstream.url, models: ["*"], max_concurrency: LINES + 1 },
      ],
      engine: { drain_grace_seconds: 0 },
    },
  };

  const first = await startTestService(options);
  const { id } = await first.submit(chatLines(LINES, () => "Hi"));
  await first.openai.post(`/batches/${id}/pause`);
  await first.events.reached("batch.started", { batch: id });
  await expect.poll(() => upstream.inFlight).toBe(0);
  const database = new Database(join(dataDir, "batchd.sqlite"));
  database.exec(`vacuum into '${backup}'`);
  database.close();
  upstream.holdAfter(upstream.total + 1);
  await first.openai.post(`/batches/${id}/resume`);
  await first.events.reached("journal.flushed");
  await first.close();

  for (const end of ["", "-wal", "-shm"]) {
    rmSync(join(dataDir, `batchd.sqlite${end}`), { force: true });
  }
  copyFileSync(backup, join(dataDir, "batchd.sqlite"));
  upstream.release();
  upstream.received.clear();
  let blobs: GatedBlobs | null = null;
  await using second = await startTestService({
    ...options,
    openStorage: async (config, deps) => {
      const opened = await openStorage(config, deps);
      if (!opened.ok) return opened;
      blobs = new GatedBlobs(opened.blobs);
      blobs.deletes.close("journal/");
      return { ...opened, blobs };
    },
  });
  await blobs!.deletes.reached();
  upstream.holdAfter(upstream.total + LINES - 1);
  await second.openai.post(`/batches/${id}/resume`);
  await second.events.reached("journal.flushed");
  blobs!.deletes.open();
  await second.events.reached("orphan.removed");
  upstream.release();

  expect(await second.ended(id)).toMatchObject({
    status: "completed",
    request_counts: { total: LINES, completed: LINES, failed: 0 },
  });
  expect([...upstream.received.values()]).toEqual(Array(LINES).fill(1));
});
