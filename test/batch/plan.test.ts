import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type PlannedChunk, Planner } from "../../src/batch/plan.ts";
import { LineSplitter, type SplitLine } from "../../src/batch/split.ts";

/** A file of lines, each `<route>:<filler>`, some with blank lines before them. */
interface Drawn {
  readonly route: string;
  readonly filler: number;
  readonly blanksBefore: number;
}

const drawnLines = fc.array(
  fc.record({
    route: fc.constantFrom("a", "b", "c"),
    filler: fc.nat({ max: 20 }),
    blanksBefore: fc.oneof(fc.constant(0), fc.constant(0), fc.nat({ max: 30 })),
  }),
  { maxLength: 40 },
);

const fileOf = (lines: readonly Drawn[], hasFinalNewline: boolean) =>
  Buffer.from(
    lines
      .map((line) => `${"\n".repeat(line.blanksBefore)}${line.route}:${"x".repeat(line.filler)}`)
      .join("\n") + (hasFinalNewline ? "\n" : ""),
  );

function split(bytes: Buffer, from: { start: number; firstLine: number }): SplitLine[] {
  const splitter = new LineSplitter(1_000, from);
  return [...splitter.push(bytes), ...splitter.end()];
}

const routeOf = (line: SplitLine) => line.bytes!.toString("latin1", 0, 1);

function plan(lines: readonly SplitLine[], limits: { maxLines: number; maxBytes: number }) {
  const planner = new Planner(limits);
  for (const line of lines) {
    const route = routeOf(line);
    planner.add({ ...line, model: `model-${route}`, routeKey: route });
  }
  return planner.finish();
}

const readBack = (file: Buffer, chunk: PlannedChunk): SplitLine[] =>
  chunk.extents.flatMap((extent) => split(file.subarray(extent.start, extent.end), extent));

const bytesIn = (chunk: PlannedChunk) =>
  chunk.extents.reduce((sum, extent) => sum + extent.end - extent.start, 0);

describe("for any mix of routes, sizes, blank lines and limits", () => {
  const limits = fc.record({
    maxLines: fc.integer({ min: 1, max: 8 }),
    maxBytes: fc.integer({ min: 1, max: 120 }),
  });
  const holds = (
    check: (
      chunks: PlannedChunk[],
      lines: SplitLine[],
      file: Buffer,
      limit: { maxLines: number; maxBytes: number },
    ) => void,
  ) =>
    fc.assert(
      fc.property(drawnLines, fc.boolean(), limits, (drawn, hasFinalNewline, limit) => {
        const file = fileOf(drawn, hasFinalNewline);
        const lines = split(file, { start: 0, firstLine: 1 });
        check(plan(lines, limit), lines, file, limit);
      }),
      { numRuns: 400 },
    );

  test("reading the extents of all chunks gives every line exactly once, with its number and place", () => {
    holds((chunks, lines, file) => {
      const read = chunks.flatMap((chunk) => readBack(file, chunk));
      expect(read.sort((a, b) => a.number - b.number)).toEqual(lines);
    });
  });

  test("a chunk holds lines of one route, in file order, as many as it says", () => {
    holds((chunks, _lines, file) => {
      for (const chunk of chunks) {
        const read = readBack(file, chunk);
        expect(read).toHaveLength(chunk.lineCount);
        expect(new Set(read.map((line) => `model-${routeOf(line)}`))).toEqual(
          new Set([chunk.model]),
        );
        const numbers = read.map((line) => line.number);
        expect(numbers).toEqual(numbers.toSorted((a, b) => a - b));
      }
    });
  });

  test("a chunk keeps its limits, blank lines included, unless a single line is longer", () => {
    holds((chunks, _lines, _file, { maxLines, maxBytes }) => {
      for (const chunk of chunks) {
        expect(chunk.lineCount).toBeLessThanOrEqual(maxLines);
        if (chunk.lineCount > 1) expect(bytesIn(chunk)).toBeLessThanOrEqual(maxBytes);
      }
    });
  });

  test("chunks are numbered from 0 by their first line", () => {
    holds((chunks) => {
      expect(chunks.map((chunk) => chunk.number)).toEqual(chunks.map((_, i) => i));
      const firstLines = chunks.map((chunk) => chunk.extents[0]!.firstLine);
      expect(firstLines).toEqual(firstLines.toSorted((a, b) => a - b));
    });
  });
});

test("neighbouring lines of a route are one extent, so that they are one read", () => {
  const lines = split(Buffer.from("a:1\na:2\n\na:3\nb:4\na:5\n"), { start: 0, firstLine: 1 });
  expect(plan(lines, { maxLines: 100, maxBytes: 100 })).toEqual([
    {
      number: 0,
      model: "model-a",
      lineCount: 4,
      extents: [
        { start: 0, end: 13, firstLine: 1 },
        { start: 17, end: 21, firstLine: 6 },
      ],
    },
    {
      number: 1,
      model: "model-b",
      lineCount: 1,
      extents: [{ start: 13, end: 17, firstLine: 5 }],
    },
  ]);
});

test("all chunks of a route go by one name, whichever of its models their lines ask for", () => {
  const planner = new Planner({ maxLines: 2, maxBytes: 1_000 });
  const models = ["a", "other", "alias-of-a", "alias-of-a", "a", "other", "alias-of-a"];
  for (const [i, model] of models.entries()) {
    const routeKey = model === "other" ? "2" : "1";
    planner.add({ number: i + 1, start: i * 10, end: i * 10 + 10, model, routeKey });
  }
  const chunks = planner.finish().map(({ model: route, lineCount }) => [route, lineCount]);
  expect(chunks).toEqual([
    ["a", 2],
    ["other", 2],
    ["a", 2],
    ["a", 1],
  ]);
});

test("a file without lines has no chunks", () => {
  expect(new Planner({ maxLines: 1, maxBytes: 1 }).finish()).toEqual([]);
});
