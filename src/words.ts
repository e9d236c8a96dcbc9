/** Puts numbers, sizes and times into words. */

// No formatter is made here: the first one brings 9 MB of Node's tables into memory.
export const count = (value: number): string => value.toLocaleString("en-US");

export const lines = (value: number): string => `${count(value)} ${value === 1 ? "line" : "lines"}`;

const BYTE_UNITS = ["B", "kB", "MB", "GB", "TB"];

/** Returns a size in the unit in which it has at most three digits before the point, such as `168 kB` or `1.0 MB`. */
export function bytes(value: number): string {
  let [scaled, step] = [value, 0];
  for (; Math.round(scaled) >= 1_000 && step < BYTE_UNITS.length - 1; step++) scaled /= 1_000;
  return `${scaled.toFixed(step === 0 || scaled >= 99.95 ? 0 : 1)} ${BYTE_UNITS[step]}`;
}

/** Returns a duration in its largest unit, such as `4 min`. */
export function duration(seconds: number): string {
  const rounded = Math.max(0, Math.round(seconds));
  if (rounded < 100) return `${rounded} s`;
  if (rounded < 100 * 60) return `${Math.round(rounded / 60)} min`;
  if (rounded < 48 * 3600) return `${Math.round(rounded / 3600)} h`;
  return `${Math.round(rounded / 86_400)} days`;
}

/** Returns a date of the API, in UTC. */
export const date = (unixSeconds: number | null | undefined): string =>
  typeof unixSeconds === "number" && Math.abs(unixSeconds) < 8e12
    ? `${new Date(unixSeconds * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`
    : "-";

export function rate(linesPerSecond: number): string {
  if (linesPerSecond >= 10) return `${count(Math.round(linesPerSecond))}/s`;
  if (linesPerSecond >= 0.5) return `${linesPerSecond.toFixed(1)}/s`;
  return `${(linesPerSecond * 60).toFixed(1)}/min`;
}

/** Returns a word as a shell takes it: in quotes if it has signs that a shell would obey. */
export const shellWord = (word: string): string =>
  /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;

/** Returns a path as a word of a command that takes it for no option. */
export const shellPath = (path: string): string =>
  shellWord(path.startsWith("-") && path !== "-" ? `./${path}` : path);
