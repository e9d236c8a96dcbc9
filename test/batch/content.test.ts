import { isUtf8 } from "node:buffer";
import { createHash } from "node:crypto";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { ContentCheck, type ContentReport } from "../../src/batch/content.ts";

/** Checks the content in pieces of the given sizes, over and over. */
function reportOf(
  content: Buffer,
  pieceBytes: readonly number[] = [content.length],
): ContentReport {
  const check = new ContentCheck();
  for (let at = 0, i = 0; at < content.length; i++) {
    const size = pieceBytes[i % pieceBytes.length] || 1;
    check.add(content.subarray(at, at + size));
    at += size;
  }
  expect(check.bytes).toBe(content.length);
  return check.report();
}

const hintOf = (text: string) => reportOf(Buffer.from(text)).formatHint;

describe("the check of uploaded content", () => {
  test("finds the same SHA-256 and the same UTF-8, wherever chunks are cut", () => {
    const bytes = fc.oneof(
      fc.string({ unit: "binary" }).map((text) => Buffer.from(text)),
      fc.uint8Array().map((array) => Buffer.from(array)),
      // A character cut off at the end, or one byte too many.
      fc
        .tuple(fc.string({ unit: "binary", minLength: 1 }), fc.integer({ min: 1, max: 3 }))
        .map(([text, cut]) => Buffer.from(text).subarray(0, -cut)),
    );
    const sizes = fc.array(fc.integer({ min: 1, max: 5 }), { minLength: 1, maxLength: 8 });
    fc.assert(
      fc.property(bytes, sizes, (content, pieceBytes) => {
        const report = reportOf(content, pieceBytes);
        expect(report.isUtf8).toBe(isUtf8(content));
        expect(report.sha256).toBe(createHash("sha256").update(content).digest("hex"));
      }),
      { numRuns: 2_000 },
    );
  });

  test.each([
    ['{"a":1}\nnonsense', null],
    ['{"a":1}', null],
    [' \r\n\n {"a":1}\r\n', null],
    ["", "The file is empty."],
    ["\n \n", "The file has only blank lines."],
    ['{\n  "a": 1\n}\n', "Line 1 begins a JSON object that does not end there"],
    ['\n\n{"a":', "Line 3 begins a JSON object that does not end there"],
    ['{"a":NaN,"b":[-Infinity]}', "Line 1 is JSON but for NaN or Infinity, which JSON does not"],
    ['{"a":NaN', "Line 1 begins a JSON object that does not end there"],
    ['{"a":"NaN"', "Line 1 begins a JSON object that does not end there"],
    ['[{"a":1}]', "Line 1 is or begins an array."],
    ['[\n{"a":1}\n]', "Line 1 is or begins an array."],
    ['"a"', "Line 1 is JSON, but not an object."],
    ["7", "Line 1 is JSON, but not an object."],
    ["custom_id,prompt\n1,hello\n", "Line 1 looks like CSV."],
    ["custom_id;prompt\n", "Line 1 looks like CSV."],
    ["Dear model", "Line 1 is not JSON."],
  ])("says of the first line that is not blank what is wrong with it: %j", (text, hint) => {
    if (hint === null) expect(hintOf(text)).toBeNull();
    else expect(hintOf(text)).toContain(hint);
  });

  test("lets a byte order mark pass, as a batch will name its line", () => {
    expect(hintOf('\ufeff{"a":1}\n')).toBeNull();
  });

  test("does not hold a first line of any length in memory", () => {
    const check = new ContentCheck();
    const piece = Buffer.alloc(1024 * 1024, "x");
    const beforeBytes = process.memoryUsage().arrayBuffers;
    for (let i = 0; i < 200; i++) check.add(piece);
    expect(process.memoryUsage().arrayBuffers - beforeBytes).toBeLessThan(16 * 1024 * 1024);
    expect(check.report().formatHint).toBeNull();
  });
});
