/** A reader that jumps over lines finds the same ones as a reader of all of them. */
import fc from "fast-check";
import { expect, test } from "vitest";
import type { LineMark } from "../../../src/batch/batch.ts";
import { InputWalk } from "../../../src/engine/results/input-walk.ts";
import { openBlobFolder } from "../../support/blob-folder.ts";

interface Line {
  readonly number: number;
  readonly start: number;
  readonly text: string;
}

/** It is longer than a reader keeps in memory. */
const LONG = "x".repeat(300_000);

const texts = fc.array(
  fc.oneof(
    { weight: 8, arbitrary: fc.nat().map((n) => `line ${n}`) },
    { weight: 3, arbitrary: fc.constantFrom("", " \t") },
    { weight: 1, arbitrary: fc.constant(LONG) },
  ),
  { maxLength: 30 },
);

/** The lines of a file that are not blank. */
function linesOf(all: readonly string[]): Line[] {
  let start = 0;
  const lines = all.map((text, i) => {
    const line = { number: i + 1, start, text };
    start += text.length + 1;
    return line;
  });
  return lines.filter(({ text }) => text.trim() !== "");
}

const plans = fc.record({
  all: texts,
  endsWithNewline: fc.boolean(),
  isMarked: fc.array(fc.boolean(), { minLength: 30, maxLength: 30 }),
  steps: fc.array(fc.integer({ min: 0, max: 8 }), { maxLength: 30 }),
});

test("each line that is asked for is found, or else the next one that is not blank, whatever lines are marked", async () => {
  using folder = await openBlobFolder();
  const property = fc.asyncProperty(plans, async ({ all, endsWithNewline, isMarked, steps }) => {
    const file = await folder.store(all.join("\n") + (endsWithNewline ? "\n" : ""));
    const lines = linesOf(all);
    const marks = lines
      .filter((_, i) => isMarked[i])
      .map(({ number, start }): LineMark => [number, start]);
    await using walk = new InputWalk(file, marks, folder.blobs);
    let wanted = 1;
    for (const step of [...steps, all.length]) {
      wanted += step;
      const line = lines.find(({ number }) => number >= wanted);
      const found = await walk.findFrom(wanted);
      expect([found?.number, found?.start]).toEqual([line?.number, line?.start]);
      if (found === null) break;
      expect(found.bytes === null).toBe(line?.text === LONG);
      expect((await walk.bytesOf(found)).toString()).toBe(line?.text);
    }
  });
  await fc.assert(property, { numRuns: 25 });
});

test("lines before a mark are not read", async () => {
  using folder = await openBlobFolder();
  const line = `${"y".repeat(99)}\n`;
  const file = await folder.store(line.repeat(50_000));
  await using walk = new InputWalk(
    file,
    [
      [1, 0],
      [49_001, 4_900_000],
    ],
    folder.blobs,
  );
  expect((await walk.findFrom(2))?.number).toBe(2);
  expect(walk.takeReadBytes()).toBe(2 * 100);
  expect((await walk.findFrom(49_900))?.number).toBe(49_900);
  expect(walk.takeReadBytes()).toBe(900 * 100);
});
