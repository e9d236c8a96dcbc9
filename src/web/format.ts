/** Numbers and times for people. Times are in UTC here; the script of the page writes them in the zone of the reader. */
import { bytes, count, lines } from "../words.ts";
import { type Html, html } from "./html.ts";

export { bytes as formatBytes, count as formatCount, lines as formatLines };

const COMPACT = { notation: "compact", maximumFractionDigits: 1 } as const;
export const formatCompact = (value: number): string =>
  value < 10_000 ? count(value) : value.toLocaleString("en-US", COMPACT);

/** Rounds down, because 100 % means all of them. */
export const formatPercent = (part: number, whole: number): string =>
  whole === 0 ? "0%" : `${Math.floor((part / whole) * 100)}%`;

const SECONDS_OF = [
  ["d", 86_400],
  ["h", 3_600],
  ["min", 60],
  ["s", 1],
] as const;

/** Returns the two largest units of a duration, such as `2 h 5 min`. */
export function formatDuration(seconds: number): string {
  let rest = Math.max(0, Math.round(seconds));
  const parts: string[] = [];
  for (const [unit, length] of SECONDS_OF) {
    const whole = Math.floor(rest / length);
    rest -= whole * length;
    if (whole > 0 && parts.length < 2) parts.push(`${whole} ${unit}`);
    else if (parts.length > 0) break;
  }
  return parts.join(" ") || "0 s";
}

/** Returns Unix seconds as a `time` element. With `relative` the page shows how long ago it was, and keeps that up to date. */
export function time(seconds: number, style: "relative" | "exact" = "exact"): Html {
  const iso = new Date(seconds * 1000).toISOString();
  return html`<time datetime="${iso}" data-style="${style}">${iso.slice(0, 16).replace("T", " ")} UTC</time>`;
}

export const formatMoney = (amount: string, currency: string): string =>
  `${trimmedAmount(amount)} ${currency}`;

const SMALL = { minimumSignificantDigits: 3, maximumSignificantDigits: 3 };

/** Leaves three digits that count to amounts below 1, and two after the point to others. */
function trimmedAmount(amount: string): string {
  const value = Number(amount);
  return value > 0 && value < 1 ? value.toLocaleString("en-US", SMALL) : value.toFixed(2);
}
