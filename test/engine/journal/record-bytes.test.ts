/** The bytes of records are gathered as they come, whatever their sizes. */
import fc from "fast-check";
import { expect, test } from "vitest";
import { NO_USAGE } from "../../../src/batch/batch.ts";
import { PendingRecords } from "../../../src/engine/journal/pending-records.ts";
import { recordHeader } from "../../../src/engine/journal/segment.ts";

const LIMIT_BYTES = 4 * 1024;
const BUFFER_BYTES = 64 * 1024;

const piece = fc
  .tuple(
    fc.oneof(
      fc.nat({ max: 300 }),
      fc.integer({ min: LIMIT_BYTES - 2, max: LIMIT_BYTES + 2 }),
      fc.integer({ min: BUFFER_BYTES - 2, max: BUFFER_BYTES + 2 }),
    ),
    fc.integer({ min: 0x20, max: 0xff }),
  )
  .map(([length, byte]) => Buffer.alloc(length, byte));

const record = fc.record({
  lineNumber: fc.integer({ min: 1, max: 50_000 }),
  row: fc.array(piece, { minLength: 1, maxLength: 3 }),
  names: fc.record({
    model: fc.option(fc.string({ unit: "binary" })),
    fingerprint: fc.constantFrom(null, "é\u{1f600}".repeat(100)),
  }),
});

test("a flush has the bytes of its records in their order, and counts them as they come", () => {
  fc.assert(
    fc.property(fc.array(record, { maxLength: 40 }), (records) => {
      const pending = new PendingRecords();
      const expected: Buffer[] = [];
      for (const { lineNumber, row, names } of records) {
        const bytes = row.reduce((sum, { length }) => sum + length, 0);
        const answer = { model: "m", price: null, usage: NO_USAGE, names };
        pending.add({ lineNumber, succeeded: true, row, answer });
        expected.push(Buffer.from(recordHeader({ lineNumber, succeeded: true, names }, bytes)));
        expected.push(...row);
        expect(pending.bytes).toBe(Buffer.concat(expected).length);
      }
      expect(Buffer.concat(pending.finish()).equals(Buffer.concat(expected))).toBe(true);
    }),
    { numRuns: 150 },
  );
});

test("thousands of small rows are a few pieces", () => {
  const pending = new PendingRecords();
  for (let lineNumber = 1; lineNumber <= 2_000; lineNumber++) {
    pending.add({ lineNumber, succeeded: false, row: [Buffer.alloc(500)], answer: null });
  }
  expect(pending.finish().length).toBeLessThan(25);
});
