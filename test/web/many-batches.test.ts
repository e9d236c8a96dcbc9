/** The list of batches with ten thousand of them in the store. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { openDiskBlobs } from "../../src/blobs/disk.ts";
import { systemClock } from "../../src/clock.ts";
import { rowFromBatch } from "../../src/store/rows.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import { hasChromium, openChromium } from "../support/browser.ts";
import { startTestService } from "../support/service.ts";
import { aBatch, aFile, insertFile, NOW_MS } from "../support/store-builders.ts";

const COUNT = 10_000;
/** Fills a data folder with batches that have ended. The first one alone has a name of its own and a file. */
async function fill(dataDir: string): Promise<string> {
  const path = join(dataDir, "batchd.sqlite");
  const opened = await openSqliteStore({ path, clock: systemClock });
  if (!opened.ok) throw new Error(opened.problem);
  const { store, copying } = opened;
  const file = aFile({ filename: "50%_of everything.jsonl" });
  await insertFile(store, file);
  const batches = Array.from({ length: COUNT }, (_, at) =>
    aBatch({
      status: "completed",
      inProgressAtMs: NOW_MS,
      completedAtMs: NOW_MS,
      finalizingAtMs: NOW_MS,
      ...(at === 0 && { inputFileId: file.id }),
      metadata: { name: at === 0 ? "Nächtlicher Lauf" : `run ${at}` },
    }),
  );
  const rows = batches.map((batch, at) => ({ ...rowFromBatch(batch), sequence: at + 1 }));
  await copying.insertRows("batches", rows);
  await store.close();
  await openDiskBlobs(join(dataDir, "blobs"));
  return batches[0]!.id;
}

test.skipIf(!hasChromium())(
  "a batch is found among ten thousand by its id, its name and its file, and pages go on",
  async () => {
    const dataDir = await mkdtemp(join(tmpdir(), "batchd-many-"));
    try {
      const first = await fill(dataDir);
      await using service = await startTestService({ dataDir });
      await using browser = await openChromium();
      const page = await (await browser.newContext()).newPage();
      await page.goto(service.url);
      const rows = page.locator("#batches tbody tr");
      await expect.poll(() => rows.count()).toBe(25);
      await page.getByRole("link", { name: "Older" }).click();
      await page.getByText("run 9974", { exact: true }).waitFor();
      for (const text of ["NÄCHTLICHER".replace("Ä", "ä"), "50%_OF", first.slice(-20)]) {
        await page.getByRole("searchbox", { name: "Search" }).fill(text);
        await page.keyboard.press("Enter");
        await page.waitForURL((url) => url.searchParams.get("search") === text);
        await page.locator(`#row-${first}`).waitFor();
        await expect.poll(() => rows.count()).toBe(1);
      }
      await page.getByRole("searchbox", { name: "Search" }).fill("<b>%");
      await page.keyboard.press("Enter");
      await page.getByText("No batch matches").waitFor();
      expect(await page.getByRole("searchbox", { name: "Search" }).inputValue()).toBe("<b>%");
      await page.getByRole("link", { name: "Clear" }).click();
      await rows.nth(24).waitFor();
    } finally {
      await rm(dataDir, { recursive: true, force: true });
    }
  },
);
