/**
 * Defines a figure: a measured number and its required value. A floor is the same work by a simpler program, on the
 * same machine a moment before. A figure with a floor is judged by their ratio, which means the same on every machine.
 */
export type Unit =
  | "lines/s"
  | "MB/s"
  | "MB"
  | "ms"
  | "s"
  | "requests"
  | "servers"
  | "processors"
  | "bytes";

export interface Figure {
  /** The name for programs. */
  readonly name: string;
  /** The name for people. */
  readonly title: string;
  readonly measured: number;
  readonly unit: Unit;
  readonly floor?: number;
  /** The required value. A figure without one is reported and not judged. */
  readonly hold?: Hold;
}

/** The required value of the ratio where there is a floor, else of the measured number. */
export type Hold = { readonly atLeast: number } | { readonly atMost: number };

export const MB = 1_000_000;

export const ratioOf = ({ measured, floor }: Figure): number | null =>
  floor === undefined ? null : measured / floor;

/** Returns null for a figure without a required value. */
export function isHeld(figure: Figure): boolean | null {
  const { hold } = figure;
  if (hold === undefined) return null;
  const judged = ratioOf(figure) ?? figure.measured;
  return "atLeast" in hold ? judged >= hold.atLeast : judged <= hold.atMost;
}

/** Returns the smallest value that at least `share` of all values do not exceed. */
export function percentile(values: readonly number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)] ?? Number.NaN;
}

export const median = (values: readonly number[]): number => percentile(values, 0.5);
