/** A chunk reads its own lines and no others, however its extents lie in the file. */
import { join } from "node:path";
import fc from "fast-check";
import { expect, test } from "vitest";
import type { Chunk, InputExtent } from "../../../src/batch/batch.ts";
import { openDiskBlobs } from "../../../src/blobs/disk.ts";
import { findLeftLines, linesOfExtents } from "../../../src/engine/chunks/chunk-input.ts";
import { chatLine } from "../../support/service.ts";
import { temporaryFolder } from "../../support/store-builders.ts";

const KEY = "files/input";

/** An input of so many lines, of which some belong to the chunk. */
async function inputBench(isOwn: readonly boolean[], fillingBytes = 0) {
  const dir = temporaryFolder("batchd-input-");
  const blobs = await openDiskBlobs(join(dir.path, "blobs"));
  const lines = isOwn.map((_, i) => chatLine(`line-${i + 1}`, "x".repeat(fillingBytes)));
  await blobs.putBytes(KEY, [Buffer.from(lines.map((line) => `${line}\n`).join(""))]);
  const extents: InputExtent[] = [];
  let start = 0;
  lines.forEach((line, i) => {
    const end = start + line.length + 1;
    const last = extents.at(-1);
    if (isOwn[i] && last?.end === start) extents[extents.length - 1] = { ...last, end };
    else if (isOwn[i]) extents.push({ start, end, firstLine: i + 1 });
    start = end;
  });
  const own = lines.flatMap((text, i) => (isOwn[i] ? [{ number: i + 1, text }] : []));
  const chunk = { number: 0, model: "m", lineCount: own.length, extents } as unknown as Chunk;
  const readAll = async () => {
    const found: { number: number; text: string }[] = [];
    for await (const group of linesOfExtents({ blobs, key: KEY }, extents)) {
      for (const { number, bytes } of group) found.push({ number, text: String(bytes) });
    }
    return found;
  };
  return { blobs, chunk, own, readAll, [Symbol.dispose]: () => dir[Symbol.dispose]() };
}

test("the lines of a chunk are those of its extents, with their numbers", async () => {
  const flags = fc.array(fc.boolean(), { minLength: 1, maxLength: 30 });
  const property = fc.asyncProperty(flags, async (isOwn) => {
    using bench = await inputBench(isOwn);
    expect(await bench.readAll()).toEqual(bench.own);
  });
  await fc.assert(property, { numRuns: 40 });
});

test("extents that lie far apart, or are large together, are read one by one with the same lines", async () => {
  // Gaps of 70 kB are not read over, and six lines of 1 MB are more than one read takes.
  for (const fillingBytes of [70_000, 1_000_000]) {
    using bench = await inputBench([true, false, true, true, false, true, true], fillingBytes);
    expect(await bench.readAll()).toEqual(bench.own);
  }
});

test("the lines without an answer are found in order, with their ids and nothing else of them", async () => {
  using bench = await inputBench([true, false, true, true, true], 200_000);
  const source = { blobs: bench.blobs, key: KEY, isLastTry: false };
  const left = await findLeftLines(bench.chunk, new Set([3]), source);
  expect(left.map(({ number, customId }) => [number, String(customId)])).toEqual([
    [1, '"line-1"'],
    [4, '"line-4"'],
    [5, '"line-5"'],
  ]);
  for (const { customId } of left) expect(customId?.buffer.byteLength).toBeLessThan(200_000);
});

test("where the input is gone there are as many lines left, each with a number of its own", async () => {
  using bench = await inputBench([true, true, true, true]);
  await bench.blobs.delete(KEY);
  const source = { blobs: bench.blobs, key: KEY, isLastTry: false };
  const left = await findLeftLines(bench.chunk, new Set([2]), source);
  expect(left).toEqual([1, 3, 4].map((number) => ({ number, customId: null })));
});

test("where damage looks like more lines, there are as many left as the chunk has", async () => {
  using bench = await inputBench([true, true, true]);
  const { blobs, chunk } = bench;
  const end = chunk.extents.at(-1)?.end ?? 0;
  const bytes = await blobs.readRange(KEY, { start: 0, end });
  bytes.write("\n", 5);
  await blobs.delete(KEY);
  await blobs.putBytes(KEY, [bytes]);
  const left = await findLeftLines(chunk, new Set(), { blobs, key: KEY, isLastTry: true });
  expect(left.map(({ number }) => number)).toEqual([1, 2, 3]);
});
