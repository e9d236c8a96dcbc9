/**
 * Reads a CSV file into rows. Each fault has the line of the file where its row begins. The whole table is in the memory of
 * the page, so the file, its cells and its faults have limits, and nothing takes longer than its length asks for.
 */
import { customIdOf } from "./template.js";

const MAX_FAULTS = 10;
/** As much as a server takes of lines, unless it is told otherwise. */
const MAX_MEGABYTES = 200;
/** Each cell takes some 50 bytes beside its text. A batch of 50,000 lines may have a hundred columns. */
const MAX_CELLS = 5_000_000;
/** The beginning of a file says how its columns and its lines are divided. */
const GUESSED_CHARACTERS = 1024 * 1024;
/** What Excel writes and reads as the first line of a CSV file: the sign between its columns. */
const SEPARATOR_LINE = /^"?sep=(.)"?\r?\n/i;
const NOT_UNICODE =
  "The file is neither UTF-8 nor UTF-16, so its letters cannot be told. Save it as CSV in UTF-8.";
const TOO_LARGE = `The file is larger than ${MAX_MEGABYTES} MB. Leave out the columns that no prompt needs, or split it.`;
const TOO_MANY_CELLS = `The file has more than ${MAX_CELLS.toLocaleString("en")} cells up to here. Leave out the columns that no prompt needs, or split it.`;

/** @typedef {{ line: number, message: string }} Fault */
/**
 * @typedef {object} Table
 * @property {string[]} columns
 * @property {import("./template.js").Row[]} rows
 * @property {Fault[]} faults
 */

/**
 * @param {Blob} file
 * @param {string | null} divider the sign between the columns; null to find it out
 * @returns {Promise<Table>}
 */
export async function readTable(file, divider) {
  if (file.size > MAX_MEGABYTES * 1024 * 1024) return refused(TOO_LARGE);
  const text = await textOf(file);
  if (text === null) return refused(NOT_UNICODE);
  const [separatorLine = "", separator] = SEPARATOR_LINE.exec(text) ?? [];
  const table = text.slice(separatorLine.length);
  // The guess passes over empty lines, and the parser must not: they count as lines.
  const start = Papa.parse(table.slice(0, GUESSED_CHARACTERS), {
    preview: 10,
    skipEmptyLines: "greedy",
  });
  const { delimiter, linebreak } = start.meta;
  const reader = new TableReader(separatorLine === "" ? 1 : 2);
  Papa.parse(table, {
    delimiter: separator ?? divider ?? delimiter,
    // Some lines of a file that was put together may have a carriage return, and some none. The reader takes it away.
    newline: linebreak === "\r" ? "\r" : "\n",
    // The fast mode would divide the whole file before its first row.
    fastMode: false,
    step: ({ data, errors }, parser) => {
      if (!reader.add(data, errors)) parser.abort();
    },
  });
  return reader.end();
}

/**
 * @param {string} message
 * @returns {Table}
 */
const refused = (message) => ({ columns: [], rows: [], faults: [{ line: 1, message }] });

/**
 * Returns null for another encoding than Unicode, because its bytes do not say which one it is.
 *
 * @param {Blob} file
 */
async function textOf(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  try {
    return new TextDecoder(encodingOf(bytes), { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}

/**
 * Tells UTF-16 by its mark, or by the zero beside a first letter in ASCII, which no file in UTF-8 has.
 *
 * @param {Uint8Array} bytes
 */
function encodingOf([first, second]) {
  if (first === 0xff && second === 0xfe) return "utf-16le";
  if (first === 0xfe && second === 0xff) return "utf-16be";
  if (first !== 0 && second === 0) return "utf-16le";
  return first === 0 && second !== 0 && second !== undefined ? "utf-16be" : "utf-8";
}

/** Takes the rows of a file, one after the other. */
class TableReader {
  /** @type {string[] | null} */
  #names = null;
  /** @type {Table["rows"]} */
  #rows = [];
  /** @type {Fault[]} */
  #faults = [];
  /** @type {Set<string>} */
  #ids = new Set();
  /** The line at which the next row begins. */
  #line;
  #cellCount = 0;

  /** @param {number} firstLine */
  constructor(firstLine) {
    this.#line = firstLine;
  }

  /**
   * Returns false when no more rows are needed.
   *
   * @param {readonly string[]} read
   * @param {readonly { readonly message: string }[]} errors
   */
  add(read, errors) {
    const line = this.#line;
    const cells = [...read.slice(0, -1), (read.at(-1) ?? "").replace(/\r$/, "")];
    this.#line++;
    for (const cell of cells) this.#line += lineBreaksIn(cell);
    for (const { message } of errors.slice(0, MAX_FAULTS)) this.#note(line, `${message}.`);
    if (errors.length > 0 || cells.every((cell) => cell.trim() === "")) return this.#goesOn;
    this.#cellCount += cells.length;
    if (this.#cellCount > MAX_CELLS) {
      this.#note(line, TOO_MANY_CELLS);
      return false;
    }
    if (this.#names === null) this.#takeHeader(cells, line);
    else this.#takeRow(cells, line, this.#names);
    return this.#goesOn;
  }

  /** @returns {Table} */
  end() {
    const names = this.#names ?? [];
    const isEmpty = this.#rows.length === 0 && this.#faults.length === 0;
    if (isEmpty) this.#note(1, "There is no row below the header.");
    const faults = this.#faults.slice(0, MAX_FAULTS);
    return { columns: names.filter((name) => name !== ""), rows: this.#rows, faults };
  }

  get #goesOn() {
    return this.#faults.length < MAX_FAULTS;
  }

  /**
   * @param {readonly string[]} cells
   * @param {number} line
   */
  #takeHeader(cells, line) {
    this.#names = cells.map((name) => name.trim());
    /** @type {Set<string>} */
    const seen = new Set();
    for (const name of this.#names) {
      if (name !== "" && seen.has(name)) {
        this.#note(line, `Two columns have the name ${name}.`);
        return;
      }
      seen.add(name);
    }
  }

  /**
   * @param {readonly string[]} cells
   * @param {number} line
   * @param {readonly string[]} names
   */
  #takeRow(cells, line, names) {
    const isCut = cells.length < names.length;
    if (isCut || cells.slice(names.length).some((cell) => cell !== "")) {
      this.#note(line, `Columns: ${names.length} in the header, ${cells.length} in this row.`);
      return;
    }
    const row = Object.fromEntries(names.map((name, at) => [name, cells[at] ?? ""]));
    const id = customIdOf(row, this.#rows.length + 1);
    if (this.#ids.has(id)) this.#note(line, `The id ${id} is the same as on a line before.`);
    this.#ids.add(id);
    this.#rows.push(row);
  }

  /**
   * @param {number} line
   * @param {string} message
   */
  #note(line, message) {
    this.#faults.push({ line, message });
  }
}

/**
 * A list of all breaks in a long cell would not fit into memory.
 *
 * @param {string} cell
 */
function lineBreaksIn(cell) {
  if (!/[\r\n]/.test(cell)) return 0;
  let count = 0;
  for (let at = 0; at < cell.length; at++) {
    const isPair = cell[at] === "\r" && cell[at + 1] === "\n";
    if ((cell[at] === "\n" || cell[at] === "\r") && !isPair) count++;
  }
  return count;
}
