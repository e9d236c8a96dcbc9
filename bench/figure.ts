/**
 * One measured number and what is asked of it. With a floor, which is the same work done by something
 * plainer on the same machine a moment ago, the hold is about their ratio: that says something on any machine.
 */
export type Unit = "lines/s" | "MB/s" | "MB" | "ms" | "s" | "requests" | "servers";

export interface Figure {
  /** For programs. */
  readonly name: string;
  /** For people. */
  readonly title: string;
  readonly measured: number;
  readonly unit: Unit;
  readonly floor?: number;
  /** Left out: reported, not judged. */
  readonly hold?: Hold;
}

/** Of the ratio where there is a floor, else of the measured number. */
export type Hold = { readonly atLeast: number } | { readonly atMost: number };

export const MB = 1_000_000;

export const ratioOf = ({ measured, floor }: Figure): number | null =>
  floor === undefined ? null : measured / floor;

/** Null when nothing is asked of it. */
export function isHeld(figure: Figure): boolean | null {
  const { hold } = figure;
  if (hold === undefined) return null;
  const judged = ratioOf(figure) ?? figure.measured;
  return "atLeast" in hold ? judged >= hold.atLeast : judged <= hold.atMost;
}

/** The smallest value that at least `share` of all values do not exceed. */
export function percentile(values: readonly number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)] ?? Number.NaN;
}

export const median = (values: readonly number[]): number => percentile(values, 0.5);
