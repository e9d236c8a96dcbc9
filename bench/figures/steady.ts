/**
 * Measures slow models, where the number of requests in flight decides. A bare loop always has all of them. So each
 * moment in which the server has fewer (at the start, between two chunks, at the end) lowers the figure.
 */
import type { Figure } from "../figure.ts";
import { measureRounds, medianRound } from "../rounds.ts";
import type { Sizes } from "../sizes.ts";

export async function measureSteady({ steadyShare }: Sizes): Promise<Figure[]> {
  return [
    ...(await measureRow({ lineCount: 5_000 * steadyShare, concurrency: 256, delayMs: 200 })),
    ...(await measureRow({ lineCount: 20_000 * steadyShare, concurrency: 64, delayMs: 20 })),
  ];
}

interface Row {
  readonly lineCount: number;
  readonly concurrency: number;
  readonly delayMs: number;
}

async function measureRow(row: Row): Promise<Figure[]> {
  const { cold, warm } = await measureRounds({ ...row, warmRounds: 3 });
  const { lineCount, concurrency, delayMs } = row;
  const name = `steady_${concurrency}_${delayMs}ms`;
  const count = lineCount.toLocaleString("en");
  return [
    {
      name: `${name}_cold`,
      title: `${count} lines, ${concurrency} in flight, ${delayMs} ms, first batch ÷ bare loop`,
      ...cold,
      unit: "lines/s",
    },
    {
      name,
      title: "The next ones, warm and the limit learned",
      ...medianRound(warm),
      unit: "lines/s",
      hold: { atLeast: 0.95 },
    },
  ];
}
