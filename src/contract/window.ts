/** The completion window of a batch: `24h`, and the longer ones that the operator allows. */

export const DEFAULT_COMPLETION_WINDOW = "24h";

/** The form of a window, also for the field of the page. */
export const WINDOW_PATTERN = String.raw`([1-9]\d{0,3})([hd])`;
const WINDOW = new RegExp(`^${WINDOW_PATTERN}$`);

const HOUR_MS = 60 * 60 * 1000;
const UNIT_MS: Readonly<Record<string, number>> = { h: HOUR_MS, d: 24 * HOUR_MS };
const MAX_WINDOW_MS = 30 * 24 * HOUR_MS;

/**
 * Returns the window in milliseconds. The result is null unless the text is a number of hours or days, at most 30 days
 * in total.
 */
export function completionWindowMs(window: string): number | null {
  const [, count, unit = ""] = WINDOW.exec(window) ?? [];
  const ms = Number(count) * (UNIT_MS[unit] ?? Number.NaN);
  return ms <= MAX_WINDOW_MS ? ms : null;
}
