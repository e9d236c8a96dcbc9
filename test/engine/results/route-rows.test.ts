/** The rows of many routes come in the order of their lines, and a chunk is read only once it may have the next one. */
import fc from "fast-check";
import { expect, test } from "vitest";
import { nextLines, RouteRows, RoutesByLine } from "../../../src/engine/results/route-rows.ts";
import type { ChunkJournal } from "../../../src/store/finalizing.ts";

interface Row {
  readonly lineNumber: number;
}

const range = (from: number, to: number) =>
  Array.from({ length: Math.max(0, to - from) }, (_, i) => from + i);

/** Chunks of some lines each, in the order of their lines, as a planner makes them for each route. */
function chunksOf(lines: readonly number[], chunkLines: number): ChunkJournal[] {
  return range(0, Math.ceil(lines.length / chunkLines)).map((number) => {
    const own = lines.slice(number * chunkLines, (number + 1) * chunkLines);
    // Lines that follow each other are one extent.
    const firsts = own.filter((line) => !own.includes(line - 1));
    const extents = firsts.map((firstLine) => ({ firstLine }));
    return {
      chunk: { number, extents, lineCount: own.length },
      segments: own,
    } as unknown as ChunkJournal;
  });
}
const linesOf = ({ segments }: ChunkJournal) => segments as unknown as number[];

const plans = fc.record({
  routeOfLine: fc.array(fc.constantFrom("a", "a", "a", "b", "c"), { minLength: 1, maxLength: 60 }),
  chunkLines: fc.integer({ min: 1, max: 8 }),
  groupLines: fc.integer({ min: 1, max: 5 }),
  fromLine: fc.integer({ min: 1, max: 60 }),
});

test("whatever the routes, the chunks and the first line are, each row comes once and in order", async () => {
  const property = fc.asyncProperty(plans, async (plan) => {
    const { routeOfLine, chunkLines, groupLines, fromLine } = plan;
    const numbered = routeOfLine.map((route, i) => ({ route, line: i + 1 }));
    const byRoute = [...Map.groupBy(numbered, ({ route }) => route).values()].map((ofRoute) =>
      chunksOf(
        ofRoute.map(({ line }) => line),
        chunkLines,
      ),
    );
    const lineOf = nextLines(byRoute.flat(), fromLine);
    const latest: number[] = [];
    const read = async function* (journal: ChunkJournal): AsyncGenerator<readonly Row[]> {
      // No chunk is read before the rows of all lines that come before it were taken.
      const first = linesOf(journal).find((line) => line >= fromLine) ?? Number.POSITIVE_INFINITY;
      expect(lineOf.get(journal)).toBeLessThanOrEqual(first);
      expect(latest.length).toBeGreaterThanOrEqual((lineOf.get(journal) ?? 0) - fromLine);
      const rows = linesOf(journal).map((lineNumber) => ({ lineNumber }));
      for (let at = 0; at < rows.length; at += groupLines) yield rows.slice(at, at + groupLines);
    };
    const options = { lineOf, read, fromLine };
    const routes = new RoutesByLine(
      byRoute.map((chunks) => {
        const left = chunks.filter((journal) => lineOf.has(journal));
        return new RouteRows(left, options);
      }),
    );
    for (let route = routes.take(); route !== undefined; route = routes.take()) {
      if (route.isRead) {
        latest.push(...route.takeBefore(routes.firstLine).map(({ lineNumber }) => lineNumber));
      } else await route.readOn();
      routes.add(route);
    }
    expect(latest).toEqual(range(fromLine, routeOfLine.length + 1));
  });
  await fc.assert(property, { numRuns: 100 });
});
