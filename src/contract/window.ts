/** How long a batch may take: `24h`, and what else the operator allows. */

export const DEFAULT_COMPLETION_WINDOW = "24h";

const HOUR_MS = 60 * 60 * 1000;
const UNIT_MS: Readonly<Record<string, number>> = { h: HOUR_MS, d: 24 * HOUR_MS };
const MAX_WINDOW_MS = 30 * 24 * HOUR_MS;

/** Null when it is no window: hours or days, at most 30 days together. */
export function completionWindowMs(window: string): number | null {
  const [, count, unit = ""] = /^([1-9]\d{0,3})([hd])$/.exec(window) ?? [];
  const ms = Number(count) * (UNIT_MS[unit] ?? Number.NaN);
  return ms <= MAX_WINDOW_MS ? ms : null;
}
