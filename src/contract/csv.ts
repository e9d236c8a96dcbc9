/** One line of CSV (RFC 4180). Clients choose ids and names, and models choose answers, so a cell is hostile text. */

/**
 * A spreadsheet would take a text that begins with such a sign for a formula. An apostrophe in front keeps it a text. The
 * wide signs of East Asian keyboards count as the usual ones do.
 */
const FORMULA_SIGNS = "=+-@\uff1d\uff0b\uff0d\uff20";
const FORMULA_SPACE = /^[\t\r\n]/;
/**
 * Some programs drop spaces, and signs that cannot be seen, before they look. A text may have millions of them at its
 * beginning. A pattern that could give some of them back would exceed its stack.
 */
const VISIBLE = /[^\p{Z}\p{C}]/u;

export const csvLine = (cells: readonly (string | number | null | undefined)[]): string =>
  `${cells.map(csvCell).join(",")}\r\n`;

/** Nothing stands for null, and `""` for an empty text. */
function csvCell(value: string | number | null | undefined): string {
  if (typeof value !== "string") return String(value ?? "");
  return `"${withQuotesDoubled(isFormula(value) ? `'${value}` : value)}"`;
}

function isFormula(text: string): boolean {
  const [first] = VISIBLE.exec(text) ?? [];
  return FORMULA_SPACE.test(text) || (first !== undefined && FORMULA_SIGNS.includes(first));
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
