/** One line of CSV (RFC 4180). Clients choose ids and names, and models choose answers, so a cell is hostile text. */

/** A spreadsheet would take a text that begins with such a sign for a formula. An apostrophe in front keeps it a text. */
const FORMULA = /^[=+\-@\t\r]/;

export const csvLine = (cells: readonly (string | number | null | undefined)[]): string =>
  `${cells.map(csvCell).join(",")}\r\n`;

function csvCell(value: string | number | null | undefined): string {
  const text = String(value ?? "");
  return `"${(FORMULA.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
}
