/** A segment gives back all that was written, or nothing. */
import { join } from "node:path";
import { Readable } from "node:stream";
import fc from "fast-check";
import { expect, test } from "vitest";
import type { AnswerNames } from "../../../src/batch/batch.ts";
import type { BlobReader, Blobs } from "../../../src/blobs/blobs.ts";
import { openDiskBlobs } from "../../../src/blobs/disk.ts";
import { crc32Of, readSegment, recordHeader } from "../../../src/engine/journal/segment.ts";
import { temporaryFolder } from "../../support/store-builders.ts";

const KEY = "journal/batch/0-1-0";

interface Written {
  readonly lineNumber: number;
  readonly succeeded: boolean;
  readonly row: string;
  readonly names?: AnswerNames | undefined;
}

async function segmentBench() {
  const dir = temporaryFolder("batchd-segment-");
  const blobs = await openDiskBlobs(join(dir.path, "blobs"));
  return { blobs, [Symbol.dispose]: () => dir[Symbol.dispose]() };
}

const partsOf = (records: readonly Written[]) =>
  records.flatMap((record) => {
    const row = Buffer.from(record.row);
    return [Buffer.from(recordHeader(record, row.length)), row];
  });

const bytesOf = (parts: readonly Buffer[]) => parts.reduce((sum, { length }) => sum + length, 0);

/** Writes `stored` where the row of the segment says that `records` are. */
async function reading(blobs: Blobs, records: readonly Written[], stored = partsOf(records)) {
  await blobs.delete(KEY);
  await blobs.putBytes(KEY, stored);
  const parts = partsOf(records);
  const segment = { blobKey: KEY, bytes: bytesOf(parts), crc32: await crc32Of(parts) };
  const reader = { isLastTry: false, blobs: inPieces(blobs) };
  const inPassing = await readSegment(segment, { ...reader, maxKeptBytes: 0 });
  const whole = await readSegment(segment, reader);
  if (segment.bytes > 0) expect(inPassing).toEqual(whole.ok ? { ...whole, bytes: null } : whole);
  return whole;
}

/** Reads a few bytes at a time, so that every header is cut somewhere. */
const inPieces = (blobs: Blobs): BlobReader => ({
  maxReadsAhead: blobs.maxReadsAhead,
  readRange: (key, range) => blobs.readRange(key, range),
  read: (key, range) =>
    Readable.from(
      (async function* () {
        for await (const piece of blobs.read(key, range) as AsyncIterable<Buffer>) {
          for (let at = 0; at < piece.length; at += 3) yield piece.subarray(at, at + 3);
        }
      })(),
      { objectMode: false },
    ),
});

const name = fc.option(fc.oneof(fc.string({ unit: "binary" }), fc.constant('["\n \u2028\ud800')));
const record = fc.record({
  lineNumber: fc.integer({ min: 1, max: 50_000 }),
  names: fc.option(fc.record({ model: name, fingerprint: name }), { nil: undefined }),
  succeeded: fc.boolean(),
  // Rows may hold newlines, and what looks like the header of a record.
  row: fc.oneof(fc.string({ unit: "binary" }), fc.constant("7 o 3\nabc")),
});

test("whatever the rows and the names are, they come back as they were written, in the same order", async () => {
  using bench = await segmentBench();
  const property = fc.asyncProperty(fc.array(record, { maxLength: 12 }), async (records) => {
    const read = await reading(bench.blobs, records);
    if (!read.ok) throw new Error(read.problem);
    const found = read.records.map(({ lineNumber, succeeded, names, start, end }) => {
      const row = read.bytes?.toString("utf8", start, end);
      return { lineNumber, succeeded, row, names: names ?? undefined };
    });
    expect(found).toEqual(records);
  });
  await fc.assert(property, { numRuns: 60 });
});

test("a segment with any one wrong byte is damaged as a whole", async () => {
  using bench = await segmentBench();
  const records = [1, 2].map((lineNumber) => ({ lineNumber, succeeded: true, row: "row\n" }));
  const bytes = Buffer.concat(partsOf(records));
  for (let at = 0; at < bytes.length; at++) {
    const spoiled = Buffer.from(bytes);
    spoiled[at]! ^= 1;
    expect(await reading(bench.blobs, records, [spoiled])).toMatchObject({ ok: false });
  }
});

test("a segment that has become shorter, or is gone, is damaged", async () => {
  using bench = await segmentBench();
  const records = [{ lineNumber: 1, succeeded: true, row: "a row that is long enough\n" }];
  const short = Buffer.concat(partsOf(records)).subarray(0, 10);
  expect(await reading(bench.blobs, records, [short])).toMatchObject({ ok: false });
  await bench.blobs.delete(KEY);
  const segment = { blobKey: KEY, bytes: 10, crc32: null };
  const read = await readSegment(segment, { blobs: bench.blobs, isLastTry: false });
  expect(read).toMatchObject({ ok: false });
});

test("without a checksum, bytes that are no records are damaged", async () => {
  using bench = await segmentBench();
  for (const text of ["no header", "1 o 999\nshort", "1 o x\nrow"]) {
    await bench.blobs.delete(KEY);
    await bench.blobs.putBytes(KEY, [Buffer.from(text)]);
    const segment = { blobKey: KEY, bytes: text.length, crc32: null };
    const read = await readSegment(segment, { blobs: bench.blobs, isLastTry: false });
    expect(read, text).toMatchObject({ ok: false });
  }
});

test("an error that may pass is thrown, and counts as damage in the last try alone", async () => {
  using bench = await segmentBench();
  // A folder where the blob should be: reading it is EISDIR, which says nothing about the bytes.
  await bench.blobs.putBytes(`${KEY}/x`, [Buffer.from("x")]);
  const segment = { blobKey: KEY, bytes: 1, crc32: null };
  const read = (isLastTry: boolean) => readSegment(segment, { blobs: bench.blobs, isLastTry });
  await expect(read(false)).rejects.toThrow("EISDIR");
  expect(await read(true)).toMatchObject({ ok: false });
});
