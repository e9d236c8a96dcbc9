/** One line of CSV (RFC 4180). Clients choose ids and names, and models choose answers, so a cell is hostile text. */

/**
 * A spreadsheet would take a text that begins with such a sign for a formula. An apostrophe in front keeps it a text. The
 * wide signs of East Asian keyboards (`＝＋－＠`) count as the usual ones do. Some programs drop spaces, and signs that
 * cannot be seen, before they look.
 */
const FORMULA = /^(?:[\p{Z}\p{C}]*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n])/u;

export const csvLine = (cells: readonly (string | number | null | undefined)[]): string =>
  `${cells.map(csvCell).join(",")}\r\n`;

/** Nothing stands for null, and `""` for an empty text. */
function csvCell(value: string | number | null | undefined): string {
  if (typeof value !== "string") return String(value ?? "");
  return `"${(FORMULA.test(value) ? `'${value}` : value).replaceAll('"', '""')}"`;
}
