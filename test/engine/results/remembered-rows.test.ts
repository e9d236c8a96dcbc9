import { expect, test } from "vitest";
import type { BlobReader } from "../../../src/blobs/blobs.ts";
import { openDiskBlobs } from "../../../src/blobs/disk.ts";
import { LOST, RememberedRows } from "../../../src/engine/results/remembered-rows.ts";
import { temporaryFolder } from "../../support/store-builders.ts";

test("each of thousands of rows is found as it was: its kind, its bytes, or that they are lost", async () => {
  using folder = temporaryFolder("batchd-rows-");
  const blobs = await openDiskBlobs(folder.path);
  const rows = new RememberedRows(blobs);
  const count = 5_000;
  // Together they are longer than what is kept in memory.
  const text = (n: number) => `${n} `.padEnd(8_000, "x");
  const kindOf = (n: number) => (n % 3 === 0 ? "failed" : "completed");
  for (let blob = 0; blob < count / 100; blob++) {
    const numbers = Array.from({ length: 100 }, (_, i) => blob * 100 + i);
    const bytes = numbers.map((n) => Buffer.from(text(n)));
    const blobKey = `journal/batch/${blob}`;
    await blobs.putBytes(blobKey, bytes);
    for (const [i, n] of numbers.entries()) {
      const place = { blobKey, start: i * 8_000, end: (i + 1) * 8_000 };
      const found = { lineNumber: 2 * n, kind: kindOf(n), bytes: bytes[i] as Buffer } as const;
      rows.add(n % 7 === 0 ? found : { ...found, place });
    }
  }
  for (let n = 0; n < count; n += 13) {
    const found = await rows.find(2 * n);
    if (n % 7 === 0) expect(found).toBe(LOST);
    else expect(found).toMatchObject({ kind: kindOf(n), bytes: Buffer.from(text(n)) });
    expect(await rows.find(2 * n + 1)).toBeNull();
  }
});

test("a row that many equal lines want at the same time is kept once, and costs no other its place", async () => {
  using folder = temporaryFolder("batchd-rows-");
  const disk = await openDiskBlobs(folder.path);
  let readCount = 0;
  const readRange: BlobReader["readRange"] = (key, range) => {
    readCount++;
    return disk.readRange(key, range);
  };
  const rows = new RememberedRows({
    maxReadsAhead: 0,
    read: (key, range) => disk.read(key, range),
    readRange,
  });
  const bytes = Buffer.alloc(1024 * 1024, "x");
  const blobKey = "journal/batch/0";
  await disk.putBytes(blobKey, Array(20).fill(bytes));
  for (let n = 0; n < 20; n++) {
    const place = { blobKey, start: n * bytes.length, end: (n + 1) * bytes.length };
    rows.add({ lineNumber: n, kind: "completed", bytes, place });
  }
  await Promise.all(Array.from({ length: 32 }, () => rows.find(0)));
  readCount = 0;
  for (const n of [0, 19, 18, 17]) await rows.find(n);
  expect(readCount).toBe(0);
});
