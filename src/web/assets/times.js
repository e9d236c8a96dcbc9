/** Writes times in the zone and the words of the reader, and keeps "3 minutes ago" true. */

const EXACT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "long" });
const EVERY_MS = 5_000;

/** @type {readonly (readonly [Intl.RelativeTimeFormatUnit, number])[]} */
const UNITS = [
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
  ["second", 1],
];

/** How far the clock of the server is ahead of the one of this machine, which may be wrong. */
const AHEAD_MS = Number(document.documentElement.dataset["now"]) - Date.now();

/** The time of the server, from which all times of the page are. */
export const serverNowMs = () => Date.now() + AHEAD_MS;

/** @param {number} seconds */
function relative(seconds) {
  if (Math.abs(seconds) < 5) return "now";
  for (const [unit, length] of UNITS) {
    if (Math.abs(seconds) >= length) return RELATIVE.format(Math.trunc(seconds / length), unit);
  }
  return "now";
}

/**
 * Writes the times inside an element.
 *
 * @param {ParentNode} root
 */
export function writeTimes(root) {
  const nowMs = serverNowMs();
  for (const element of root.querySelectorAll("time")) {
    const atMs = Date.parse(element.dateTime);
    const exact = EXACT.format(atMs);
    const text = element.dataset["style"] === "relative" ? relative((atMs - nowMs) / 1000) : exact;
    if (element.textContent !== text) element.textContent = text;
    if (element.title !== exact) element.title = exact;
  }
}

export function startTimes() {
  writeTimes(document);
  setInterval(() => writeTimes(document), EVERY_MS);
}
