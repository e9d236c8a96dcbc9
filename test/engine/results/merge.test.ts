/** Every line of a batch exactly once and in input order, however its journals are cut and however large they are. */
import { join } from "node:path";
import fc from "fast-check";
import { beforeEach, expect, test } from "vitest";
import type { Chunk } from "../../../src/batch/batch.ts";
import { openDiskBlobs } from "../../../src/blobs/disk.ts";
import { crc32Of, recordHeader } from "../../../src/engine/journal/segment.ts";
import type { Row } from "../../../src/engine/results/chunk-records.ts";
import { Merge, type MergeOptions } from "../../../src/engine/results/merge.ts";
import type { Segment } from "../../../src/store/chunks.ts";
import type { ChunkJournal } from "../../../src/store/finalizing.ts";
import { chatLine, startTestService } from "../../support/service.ts";
import { temporaryFolder } from "../../support/store-builders.ts";
import { startUpstream } from "../../support/upstream.ts";
import { limitWork } from "../../support/watchdog.ts";

// A merge gives other work its turns, so one that never ends would stop nothing but the run of the tests.
beforeEach(limitWork);

const INPUT = "files/input";

interface PlannedLine {
  readonly number: number;
  readonly route: string;
}

/** A merge on real blobs, whose input has one line of the same length for each number. */
async function mergeBench() {
  const dir = temporaryFolder("batchd-merge-");
  const blobs = await openDiskBlobs(join(dir.path, "blobs"));
  let segmentCount = 0;
  const writeSegment = async (numbers: readonly number[]): Promise<Segment> => {
    const parts = numbers.flatMap((lineNumber) => {
      const row = Buffer.from(`${`row ${lineNumber} `.padEnd(39, "x")}\n`);
      const header = recordHeader({ lineNumber, succeeded: lineNumber % 2 === 1 }, row.length);
      return [Buffer.from(header), row];
    });
    const blobKey = `journal/batch/${segmentCount++}`;
    await blobs.putBytes(blobKey, parts);
    const bytes = parts.reduce((sum, { length }) => sum + length, 0);
    return { blobKey, bytes, crc32: await crc32Of(parts) };
  };
  const merge = (more: Partial<MergeOptions> = {}) =>
    new Merge({
      blobs,
      inputBlobKey: INPUT,
      stopReason: null,
      left: "rows",
      isLastTry: false,
      onDamaged: () => {},
      ...more,
    });
  return { blobs, writeSegment, merge, [Symbol.dispose]: () => dir[Symbol.dispose]() };
}

const inputLine = (n: number) => `${chatLine(`line-${n}`, "Hello").padEnd(300)}\n`;
const LINE_BYTES = 301;

/** The lines of one route, so many in each chunk. */
function chunkOf(number: number, lines: readonly PlannedLine[]): Chunk {
  return {
    number,
    model: lines[0]!.route,
    lineCount: lines.length,
    extents: lines.map((line) => ({
      start: (line.number - 1) * LINE_BYTES,
      end: line.number * LINE_BYTES,
      firstLine: line.number,
    })),
  } as unknown as Chunk;
}

async function rowsOf(
  merge: Merge,
  journals: readonly ChunkJournal[],
  fromLine?: number,
): Promise<Row[]> {
  const rows: Row[] = [];
  let groupCount = 0;
  for await (const group of merge.rows(journals, fromLine)) {
    rows.push(...group);
    if (++groupCount > 1_000) throw new Error("the merge does not come to an end");
  }
  return rows;
}

const split = <T>(all: readonly T[], size: number): T[][] =>
  Array.from({ length: Math.ceil(all.length / size) }, (_, i) =>
    all.slice(i * size, (i + 1) * size),
  );

test("whatever the routes, the chunks, the segments and their order are, each line has one row in input order", async () => {
  using bench = await mergeBench();
  const routes = fc.array(fc.constantFrom("a", "b", "c"), { minLength: 1, maxLength: 40 });
  const sizes = fc.record({ chunk: fc.integer({ min: 1, max: 7 }), segment: fc.nat({ max: 4 }) });
  const property = fc.asyncProperty(routes, sizes, async (routeOfLine, size) => {
    const lines = routeOfLine.map((route, i) => ({ number: i + 1, route }));
    const chunks = [...Map.groupBy(lines, ({ route }) => route).values()].flatMap((ofRoute) =>
      split(ofRoute, size.chunk),
    );
    const journals = await Promise.all(
      chunks.map(async (ofChunk, number) => {
        // Answers come in another order than their lines, and after a crash some come twice.
        const answered = ofChunk.map((line) => line.number).toReversed();
        const groups = split([...answered, ...answered.slice(0, 1)], size.segment + 1);
        const segments = await Promise.all(groups.map((group) => bench.writeSegment(group)));
        return { chunk: chunkOf(number, ofChunk), segments };
      }),
    );
    const merge = bench.merge();
    const rows = await rowsOf(merge, journals);
    expect(rows.map(({ lineNumber }) => lineNumber)).toEqual(lines.map(({ number }) => number));
    for (const { lineNumber, kind, bytes } of rows) {
      expect(bytes.toString()).toMatch(new RegExp(`^row ${lineNumber} x+\n$`));
      expect(kind).toBe(lineNumber % 2 === 1 ? "completed" : "failed");
    }
    expect(merge.incomplete).toEqual([]);
    const half = Math.ceil(lines.length / 2);
    const later = await rowsOf(bench.merge({ left: "omitted" }), journals, half);
    expect(later).toEqual(rows.slice(half - 1));
  });
  await fc.assert(property, { numRuns: 60 });
});

test("two routes with a line of the same number, as damage may leave them, come to an end with a row each", async () => {
  using bench = await mergeBench();
  const journals = await Promise.all(
    ["a", "b"].map(async (route, number) => ({
      chunk: chunkOf(number, [{ number: 2, route }]),
      segments: [await bench.writeSegment([2])],
    })),
  );
  const rows = await rowsOf(bench.merge(), journals);
  expect(rows.map(({ lineNumber }) => lineNumber)).toEqual([2, 2]);
});

test("the rows of some lines cost the chunks that have them, however many routes there are", async () => {
  using bench = await mergeBench();
  const [routeCount, ofEach] = [200, 10];
  const journals = await Promise.all(
    Array.from({ length: routeCount }, async (_, route) => {
      const numbers = Array.from({ length: ofEach }, (_, i) => 1 + route + i * routeCount);
      const lines = numbers.map((number) => ({ number, route: `route-${route}` }));
      return { chunk: chunkOf(route, lines), segments: [await bench.writeSegment(numbers)] };
    }),
  );
  let readCount = 0;
  const blobs = Object.assign(Object.create(bench.blobs) as typeof bench.blobs, {
    readRange: (...args: Parameters<typeof bench.blobs.readRange>) => {
      readCount++;
      return bench.blobs.readRange(...args);
    },
  });
  const fromLine = 1_501;
  const found: number[] = [];
  for await (const rows of bench.merge({ blobs, left: "omitted" }).rows(journals, fromLine)) {
    found.push(...rows.map(({ lineNumber }) => lineNumber));
    if (found.length >= 20) break;
  }
  expect(found).toEqual(Array.from({ length: 20 }, (_, i) => fromLine + i));
  expect(readCount).toBe(20);
});

test("the lines of a stopped batch that never ran have rows in their places", async () => {
  using bench = await mergeBench();
  await bench.blobs.putBytes(
    INPUT,
    [1, 2, 3, 4].map((n) => Buffer.from(inputLine(n))),
  );
  const chunk = chunkOf(
    0,
    [1, 2, 3, 4].map((number) => ({ number, route: "a" })),
  );
  const segments = [await bench.writeSegment([3, 1])];
  const merge = bench.merge({ stopReason: "cancelled" });
  const rows = await rowsOf(merge, [{ chunk, segments }]);
  expect(rows.map(({ lineNumber, kind }) => [lineNumber, kind])).toEqual([
    [1, "completed"],
    [2, "not_run"],
    [3, "completed"],
    [4, "not_run"],
  ]);
  expect(JSON.parse(rows[3]!.bytes.toString())).toMatchObject({
    custom_id: "line-4",
    error: { code: "batch_cancelled" },
  });
  expect(merge.incomplete).toEqual([]);
});

test("a chunk with a damaged segment is reported with all of it, and the others are looked at too", async () => {
  using bench = await mergeBench();
  const damaged: string[] = [];
  const merge = bench.merge({ left: "sent_again", onDamaged: ({ blob }) => damaged.push(blob) });
  const journals: ChunkJournal[] = [];
  for (const number of [0, 1, 2]) {
    const lines = [1, 2].map((n) => ({ number: number * 2 + n, route: "a" }));
    const segments = [
      await bench.writeSegment([lines[0]!.number]),
      await bench.writeSegment([lines[1]!.number]),
    ];
    journals.push({ chunk: chunkOf(number, lines), segments });
  }
  await bench.blobs.delete(journals[0]!.segments[1]!.blobKey);
  await bench.blobs.delete(journals[2]!.segments[0]!.blobKey);
  const rows = await rowsOf(merge, journals);
  const lost = [journals[0]!.segments[1]!.blobKey, journals[2]!.segments[0]!.blobKey];
  expect(rows.map(({ lineNumber }) => lineNumber)).toEqual([3, 4]);
  expect(damaged).toEqual(lost);
  expect(merge.incomplete).toEqual([
    { chunkNumber: 0, lostBlobKeys: [lost[0]] },
    { chunkNumber: 2, lostBlobKeys: [lost[1]] },
  ]);
});

test("a chunk whose rows are too large to keep is read row by row, among the small rows of other routes", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    config: {
      limits: { allow_mixed_models: true },
      upstreams: [
        { name: "large", base_url: upstream.url, models: ["large"] },
        { name: "small", base_url: upstream.url, models: ["small"] },
      ],
    },
  });
  const LINES = 12;
  // Eight answers of 3 MB in one chunk: 24 MB, where 16 MB are kept.
  const isLarge = (n: number) => n % 3 !== 0;
  const lines = Array.from({ length: LINES }, (_, i) => i + 1).map((n) =>
    chatLine(`line-${n}`, isLarge(n) ? "[[big 3000000]]" : `small ${n}`, {
      model: isLarge(n) ? "large" : "small",
    }),
  );
  const batch = await service.run(lines);
  expect(batch.request_counts).toEqual({ total: LINES, completed: LINES, failed: 0 });
  const text = await service.text(batch.output_file_id);
  const rows = text.trimEnd().split("\n");
  expect(rows.map((row) => /"custom_id":"line-(\d+)"/.exec(row)?.[1])).toEqual(
    Array.from({ length: LINES }, (_, i) => String(i + 1)),
  );
  rows.forEach((row, i) => {
    expect(row.length > 3_000_000).toBe(isLarge(i + 1));
    JSON.parse(row);
  });
});
