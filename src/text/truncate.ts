/** Shortens texts and lists of clients for messages, because a client may write megabytes in the place of a name. */

/** The most that a message quotes of a text. */
const TRUNCATED_CHARACTERS = 200;
const LISTED_NAMES = 10;
const LISTED_CHARACTERS = 60;

/**
 * Truncates a text for a message. The cut never splits a character, because strict clients refuse JSON with half of
 * one.
 */
export function truncate(text: string, length = TRUNCATED_CHARACTERS): string {
  if (text.length <= length) return text.toWellFormed();
  return `${text
    .slice(0, length)
    .replace(/[\ud800-\udbff]$/, "")
    .toWellFormed()}…`;
}

/**
 * Returns the beginning of a text as a text of its own. A part of a text keeps all of it in memory. Halves of a character become
 * U+FFFD.
 */
export const beginning = (text: string, length: number): string =>
  Buffer.from(text.slice(0, length)).toString();

/** Lists the first names for a message, with the number of the others. */
export function listed(names: readonly string[]): string {
  const some = names.slice(0, LISTED_NAMES).map((name) => `'${truncate(name, LISTED_CHARACTERS)}'`);
  const restCount = names.length - some.length;
  return [...some, ...(restCount > 0 ? [`and ${restCount} more`] : [])].join(", ");
}
