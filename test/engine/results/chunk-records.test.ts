/** The first record of a line counts, and rows come in order whether they are kept in memory or read when they are due. */
import fc from "fast-check";
import { expect, test } from "vitest";
import { crc32Of, readSegment, recordHeader } from "../../../src/engine/journal/segment.ts";
import { ChunkRecords, type Row } from "../../../src/engine/results/chunk-records.ts";
import { openBlobFolder } from "../../support/blob-folder.ts";

const answers = fc.array(
  fc.record({ line: fc.integer({ min: 1, max: 30 }), rowBytes: fc.integer({ min: 10, max: 40 }) }),
  { minLength: 1, maxLength: 10 },
);
const cases = fc.record({
  segments: fc.array(answers, { minLength: 1, maxLength: 5 }),
  isKept: fc.boolean(),
  maxRowBytes: fc.constantFrom(1_000, 25),
  fromLine: fc.integer({ min: 1, max: 30 }),
});

test("whatever was written twice, each line has its first row, and a long one its place", async () => {
  using folder = await openBlobFolder();
  const { blobs } = folder;
  const property = fc.asyncProperty(cases, async ({ segments, isKept, maxRowBytes, fromLine }) => {
    const records = new ChunkRecords({ blobs, maxRowBytes, maxAheadBytes: 1_000 });
    const firsts = new Map<number, { text: string; blobKey: string }>();
    let count = 0;
    for (const all of segments) {
      const rows = all.map(({ line, rowBytes }) => ({
        line,
        text: `${line} ${count++}`.padEnd(rowBytes - 1, "x").concat("\n"),
      }));
      const parts = rows.flatMap(({ line, text }) => {
        const head = { lineNumber: line, succeeded: line % 2 === 0 };
        return [Buffer.from(recordHeader(head, text.length)), Buffer.from(text)];
      });
      const { blobKey, bytes } = await folder.store(Buffer.concat(parts));
      const segment = { blobKey, bytes, crc32: await crc32Of(parts) };
      const reading = await readSegment(segment, { blobs, isLastTry: false });
      if (!reading.ok) throw new Error(reading.problem);
      records.add(segment, reading, isKept);
      for (const { line, text } of rows) {
        if (!firsts.has(line)) firsts.set(line, { text, blobKey });
      }
    }
    const found: Row[] = [];
    for await (const rows of records.rows(fromLine)) found.push(...rows);
    const lines = [...firsts.keys()].sort((a, b) => a - b);
    expect([records.count, records.lineNumbers]).toEqual([lines.length, new Set(lines)]);
    const wanted = lines.filter((line) => line >= fromLine);
    expect(found.map(({ lineNumber }) => lineNumber)).toEqual(wanted);
    for (const row of [...found, await records.row(lines[0]!)]) {
      const { text, blobKey } = firsts.get(row.lineNumber)!;
      expect(row.kind).toBe(row.lineNumber % 2 === 0 ? "completed" : "failed");
      const isLeft = text.length > maxRowBytes;
      expect([row.rest, row.bytes.toString()]).toEqual(
        isLeft ? [row.place, ""] : [undefined, text],
      );
      expect((await blobs.readRange(blobKey, row.place!)).toString()).toBe(text);
    }
  });
  await fc.assert(property, { numRuns: 12 });
});
