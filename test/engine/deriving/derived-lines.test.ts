/** A derived input has a line for each line of its source, or none at all and the faults. */
import { expect, test } from "vitest";
import { MAX_LISTED_FAULTS } from "../../../src/contract/batch.ts";
import { DerivedLines } from "../../../src/engine/deriving/derived-lines.ts";
import { MemoryBudget } from "../../../src/resources/memory-budget.ts";
import { openBlobFolder } from "../../support/blob-folder.ts";
import { aBatch } from "../../support/store-builders.ts";

const lineOf = (n: number, body: object) => `${JSON.stringify({ custom_id: `line-${n}`, body })}\n`;

/** Derives an input from the lines of a batch that did not run. */
async function derive(bodies: readonly object[], template: object | null) {
  using folder = await openBlobFolder();
  const input = await folder.store(bodies.map((body, i) => lineOf(i + 1, body)).join(""));
  const source = {
    template: template === null ? null : JSON.stringify(template),
  } as NonNullable<ReturnType<typeof aBatch>["source"]>;
  const memory = new MemoryBudget(() => 1e9);
  const limits = () => ({ maxLineBytes: 1_000_000 });
  const lines = new DerivedLines(aBatch({ source }), { blobs: folder.blobs, memory, limits });
  const files = { input, output: null, error: null };
  const wanted = { lines: "all", files, hasResults: false, withAnswers: false } as const;
  const pieces: Buffer[] = [];
  let mostHeldBytes = 0;
  for await (const piece of lines.of(wanted)) {
    pieces.push(piece);
    mostHeldBytes = Math.max(mostHeldBytes, memory.heldBytes("lines"));
  }
  const text = Buffer.concat(pieces).toString();
  return { lines, text, mostHeldBytes, leftBytes: memory.heldBytes("lines") };
}

test("without a template the lines are those of the source, byte for byte", async () => {
  const bodies = [{ x: 1 }, { x: "é \u2028" }, {}];
  const { lines, text } = await derive(bodies, null);
  expect(text).toBe(bodies.map((body, i) => lineOf(i + 1, body)).join(""));
  expect([lines.bytes, lines.faults]).toEqual([Buffer.byteLength(text), []]);
});

test("a long line holds memory while it is made, and only then", async () => {
  const long = { x: "x".repeat(100_000) };
  const { mostHeldBytes, leftBytes } = await derive([long, long], { y: "{{input.x}}" });
  expect(mostHeldBytes).toBeGreaterThan(100_000);
  expect(mostHeldBytes).toBeLessThan(200_000);
  expect(leftBytes).toBe(0);
});

test("behind the first fault nothing is written, and further faults are gathered with their lines", async () => {
  const bodies = [{ x: 1 }, {}, { x: 3 }, {}];
  const { lines, text } = await derive(bodies, { y: "{{input.x}}" });
  expect(text.split("\n")).toHaveLength(2);
  expect(text).toContain('"custom_id":"line-1"');
  expect(lines.faults.map(({ line, code }) => [line, code])).toEqual([
    [2, "template_value_missing"],
    [4, "template_value_missing"],
  ]);
});

test("no more faults are gathered than a batch lists", async () => {
  const bodies = Array.from({ length: 2 * MAX_LISTED_FAULTS }, () => ({}));
  const { lines } = await derive(bodies, { y: "{{input.x}}" });
  expect(lines.faults.map(({ line }) => line)).toEqual(
    Array.from({ length: MAX_LISTED_FAULTS }, (_, i) => i + 1),
  );
});
