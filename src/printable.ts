/**
 * Makes text from outside safe to print. A terminal obeys the escape sequences in it, and characters that change the
 * direction of a text hide what it says.
 */

/** Matches control characters, and those that change the direction of a text or are not visible. */
const UNPRINTABLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;

const escaped = (text: string) =>
  Array.from({ length: text.length }, (_, i) => text.charCodeAt(i))
    .map((unit) => `\\u${unit.toString(16).padStart(4, "0")}`)
    .join("");

/** Returns the text with an escape of JSON for each character that is not printed, line breaks included. */
export const printable = (text: string): string => text.replace(UNPRINTABLE, escaped);

/** Does what {@link printable} does, for text of several lines. Escapes in JSON keep their meaning. */
export const printableLines = (text: string): string =>
  text.replace(UNPRINTABLE, (each) => (each === "\n" ? each : escaped(each)));
