/** Puts numbers, sizes and times into words. */

export const count = (value: number): string => value.toLocaleString("en-US");

export const lines = (value: number): string => `${count(value)} ${value === 1 ? "line" : "lines"}`;

export function bytes(value: number): string {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  const step = value < 1_000 ? 0 : Math.min(4, Math.floor(Math.log10(value) / 3));
  const scaled = value / 1_000 ** step;
  return `${step === 0 ? count(value) : scaled.toFixed(1)} ${units[step]}`;
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
  return linesPerSecond >= 10
    ? `${count(Math.round(linesPerSecond))}/s`
    : linesPerSecond >= 0.5
      ? `${linesPerSecond.toFixed(1)}/s`
      : `${(linesPerSecond * 60).toFixed(1)}/min`;
}

/** Returns a word as a shell takes it: in quotes if it has signs that a shell would obey. */
export const shellWord = (word: string): string =>
  /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;

/** Returns a path as a word of a command that takes it for no option. */
export const shellPath = (path: string): string =>
  shellWord(path.startsWith("-") && path !== "-" ? `./${path}` : path);
