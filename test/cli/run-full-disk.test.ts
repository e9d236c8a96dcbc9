/** `batchd run` on a disk that fills up while it works. */
import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { expect, onTestFinished, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { BatchdProcess } from "../support/process.ts";
import { chatLines } from "../support/service.ts";
import { mountSmallDisk } from "../support/small-disk.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const DISK_BYTES = 4_000_000;
const folder = forAllTests(temporaryFolder("batchd-run-disk-")).path;
const upstream = forAllTests(await startUpstream());

test("a run whose disk is full behind its first answer waits for room, and goes on", async (context) => {
  const path = join(folder, "disk");
  const disk = mountSmallDisk(path, DISK_BYTES);
  if (disk === null) return context.skip();
  onTestFinished(() => disk[Symbol.dispose]());
  const input = join(folder, "input.jsonl");
  writeFileSync(input, chatLines(2).join("\n"));
  upstream.holdAfter(1);
  const args = ["run", input, "-o", join(path, "answers.jsonl"), "--upstream", upstream.url];
  await using running = new BatchdProcess(args);
  await upstream.reached(2);
  // The command remembers at its next look that the model server has answered.
  const database = new DatabaseSync(join(path, ".answers.jsonl.batchd/batchd.sqlite"));
  const segments = database.prepare("select count(*) as count from segments");
  await expect.poll(() => segments.get(), { interval: 5 }).toEqual({ count: 1 });
  database.close();
  const filler = join(path, "filler");
  expect(() => writeFileSync(filler, Buffer.alloc(DISK_BYTES))).toThrow("ENOSPC");
  await running.loggedLike(/SQLITE_FULL.*; trying again/);
  rmSync(filler);
  upstream.release();
  const { code, stderr } = await running.exited();
  expect({ code, stderr }).toMatchObject({ code: 0 });
});
