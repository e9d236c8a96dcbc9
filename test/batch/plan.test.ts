import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  type ChunkLimits,
  DEFAULT_CHUNK_LIMITS,
  type PlannedChunk,
  Planner,
  spreadOver,
} from "../../src/batch/plan.ts";
import { LineSplitter, type SplitLine } from "../../src/text/split.ts";

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
  { maxLength: 120 },
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

function plan(lines: readonly SplitLine[], limits: ChunkLimits) {
  const planner = new Planner(limits);
  for (const line of lines) {
    const route = routeOf(line);
    planner.add({ ...line, model: `model-${route}`, routeKey: route, isSampled: false, shift: 0 });
  }
  return [...planner.finish().chunks];
}

const readBack = (file: Buffer, chunk: PlannedChunk): SplitLine[] =>
  chunk.extents.flatMap((extent) => split(file.subarray(extent.start, extent.end), extent));

const bytesIn = (chunk: PlannedChunk) =>
  chunk.extents.reduce((sum, extent) => sum + extent.end - extent.start, 0);

describe("for any mix of routes, sizes, blank lines and limits", () => {
  const limits = fc
    .record({
      unitLines: fc.integer({ min: 1, max: 4 }),
      joinedCount: fc.integer({ min: 1, max: 4 }),
      maxBytes: fc.integer({ min: 1, max: 240 }),
    })
    .map(({ joinedCount, ...limit }) => ({ ...limit, maxLines: joinedCount * limit.unitLines }));
  const holds = (
    check: (chunks: PlannedChunk[], lines: SplitLine[], file: Buffer, limit: ChunkLimits) => void,
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
    holds((chunks, _lines, _file, { unitLines, maxLines, maxBytes }) => {
      for (const chunk of chunks) {
        expect(chunk.extents.length).toBeLessThanOrEqual(unitLines);
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
  expect(plan(lines, { unitLines: 100, maxLines: 100, maxBytes: 100 })).toEqual([
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
  const planner = new Planner({ unitLines: 2, maxLines: 2, maxBytes: 1_000 });
  const models = ["a", "other", "alias-of-a", "alias-of-a", "a", "other", "alias-of-a"];
  for (const [i, model] of models.entries()) {
    const routeKey = model === "other" ? "2" : "1";
    planner.add({
      number: i + 1,
      start: i * 10,
      end: i * 10 + 10,
      model,
      routeKey,
      isSampled: false,
      shift: 0,
    });
  }
  const chunks = planner.finish().chunks.map(({ model: route, lineCount }) => [route, lineCount]);
  expect(chunks).toEqual([
    ["a", 2],
    ["other", 2],
    ["a", 2],
    ["a", 1],
  ]);
});

const smallLines = (count: number): PlannedChunk[] => {
  const planner = new Planner(DEFAULT_CHUNK_LIMITS);
  for (let i = 0; i < count; i++) {
    const place = { number: i + 1, start: i * 150, end: (i + 1) * 150 };
    planner.add({ ...place, model: "m", routeKey: "r", isSampled: false, shift: 0 });
  }
  return [...planner.finish().chunks];
};

test("the chunks of a long file are large, those of a short file are not, and eight workers end together", () => {
  const long = smallLines(50_000);
  expect(long.length).toBeLessThan(60);
  expect(long[0]!.lineCount).toBe(2_048);
  let left = 50_000;
  for (const { lineCount, extents } of long) {
    expect(extents).toHaveLength(1);
    expect(lineCount).toBeLessThanOrEqual(Math.max(512, Math.ceil(left / 16 / 512) * 512));
    left -= lineCount;
  }
  expect(left).toBe(0);
  for (const { lineCount } of smallLines(15_000)) expect(lineCount).toBeLessThanOrEqual(512);
});

test("a file without lines has no chunks", () => {
  expect(new Planner({ unitLines: 1, maxLines: 1, maxBytes: 1 }).finish().chunks).toEqual([]);
});

test("a sample has as many lines as were asked for, spread over the file, in chunks that come first", () => {
  const drawn = fc.record({
    total: fc.integer({ min: 1, max: 300 }),
    part: fc.double({ min: 0, max: 1, noNaN: true }),
  });
  fc.assert(
    fc.property(drawn, ({ total, part }) => {
      const count = Math.max(1, Math.floor(total * part));
      const isChosen = spreadOver(total, count);
      const planner = new Planner({ unitLines: 7, maxLines: 28, maxBytes: 1_000 });
      for (let i = 0; i < total; i++) {
        const line = { number: i + 1, start: i * 10, end: i * 10 + 10, model: "m", routeKey: "r" };
        planner.add({ ...line, isSampled: isChosen(i), shift: 0 });
      }
      const { chunks, sampleChunkCount } = planner.finish();
      const linesOf = (some: readonly PlannedChunk[]) =>
        some.flatMap(({ extents }) =>
          extents.flatMap(({ start, end, firstLine }) =>
            Array.from({ length: (end - start) / 10 }, (_, i) => firstLine + i),
          ),
        );
      const sampled = linesOf(chunks.slice(0, sampleChunkCount));
      expect(sampled).toHaveLength(count);
      expect(sampled[0]).toBe(1);
      const steps = sampled.slice(1).map((line, i) => line - sampled[i]!);
      for (const step of steps) expect(Math.abs(step - total / count)).toBeLessThan(1.000001);
      const others = linesOf(chunks.slice(sampleChunkCount));
      expect([...sampled, ...others].sort((a, b) => a - b)).toEqual(
        Array.from({ length: total }, (_, i) => i + 1),
      );
      expect(others).toEqual(others.toSorted((a, b) => a - b));
      expect(chunks.map(({ number }) => number)).toEqual(chunks.map((_, i) => i));
    }),
  );
});

test("the marks of a file are few, in order, and at even distances", () => {
  const planner = new Planner({ ...DEFAULT_CHUNK_LIMITS, maxBytes: 1_000_000 });
  const lineBytes = 3_000;
  for (let i = 0; i < 50_000; i++) {
    const place = { number: i + 1, start: i * lineBytes, end: (i + 1) * lineBytes };
    planner.add({ ...place, model: "m", routeKey: "r", isSampled: false, shift: 0 });
  }
  const { lineMarks } = planner.finish();
  expect(lineMarks.length).toBeGreaterThan(32);
  expect(lineMarks.length).toBeLessThanOrEqual(128);
  expect(lineMarks[0]).toEqual([1, 0]);
  for (const [number, start] of lineMarks) expect(start).toBe((number - 1) * lineBytes);
  const gaps = lineMarks.slice(1).map(([, start], i) => start - lineMarks[i]![1]);
  expect(Math.max(...gaps)).toBeLessThan(2 * Math.min(...gaps));
});
