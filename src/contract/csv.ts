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
  return `"${withQuotesDoubled(FORMULA.test(value) ? `'${value}` : value)}"`;
}

/** V8 keeps some 80 bytes of each sign that it replaces, and a text of this length may have millions of them. */
const LONG_CHARACTERS = 1024 * 1024;
const QUOTE = 0x22;

function withQuotesDoubled(text: string): string {
  if (text.length < LONG_CHARACTERS) return text.replaceAll('"', '""');
  const bytes = Buffer.from(text);
  const doubled = Buffer.allocUnsafe(2 * bytes.length);
  let length = 0;
  for (const byte of bytes) {
    doubled[length++] = byte;
    if (byte === QUOTE) doubled[length++] = QUOTE;
  }
  return doubled.toString("utf8", 0, length);
}
