/** Reads a CSV file into rows. Each fault has the line of the file where its row begins. */
import { customIdOf } from "./template.js";

const MAX_FAULTS = 10;
const NOT_UNICODE =
  "The file is neither UTF-8 nor UTF-16, so its letters cannot be told. Save it as CSV in UTF-8.";

/**
 * @typedef {object} Table
 * @property {string[]} columns
 * @property {import("./template.js").Row[]} rows
 * @property {{ line: number, message: string }[]} faults
 */

/**
 * @param {Blob} file
 * @returns {Promise<Table>}
 */
export async function readTable(file) {
  const text = await textOf(file);
  if (text === null) return { columns: [], rows: [], faults: [{ line: 1, message: NOT_UNICODE }] };
  // The guess passes over empty lines, and the parser must not: they count as lines.
  const { delimiter } = Papa.parse(text, { preview: 10, skipEmptyLines: "greedy" }).meta;
  const { data, errors } = Papa.parse(text, { delimiter });
  const lines = linesOf(data);
  const records = data
    .map((cells, at) => ({ cells, line: lines[at] ?? 1 }))
    .filter(({ cells }) => cells.some((cell) => cell.trim() !== ""));
  const names = (records[0]?.cells ?? []).map((name) => name.trim());
  const faults = errors.map(({ row, message }) => ({
    line: lines[row ?? 0] ?? 1,
    message: `${message}.`,
  }));
  const twice = names.find((name, at) => name !== "" && names.indexOf(name) !== at);
  if (twice !== undefined)
    faults.push({ line: records[0]?.line ?? 1, message: `Two columns have the name ${twice}.` });
  if (records.length < 2) faults.push({ line: 1, message: "There is no row below the header." });
  const { rows, wrong } = rowsOf(names, records.slice(1));
  const columns = names.filter((name) => name !== "");
  return { columns, rows, faults: [...faults, ...wrong].slice(0, MAX_FAULTS) };
}

/**
 * Returns null for another encoding than Unicode, because its bytes do not say which one it is.
 *
 * @param {Blob} file
 */
async function textOf(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const mark = `${bytes[0]} ${bytes[1]}`;
  const encoding = mark === "255 254" ? "utf-16le" : mark === "254 255" ? "utf-16be" : "utf-8";
  try {
    return new TextDecoder(encoding, { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}

/**
 * Returns the line at which each record begins. A cell in quotes may have several.
 *
 * @param {readonly string[][]} records
 */
function linesOf(records) {
  let line = 1;
  return records.map((cells) => {
    const first = line;
    line++;
    for (const cell of cells) line += cell.match(/\r\n|\r|\n/g)?.length ?? 0;
    return first;
  });
}

/**
 * @param {readonly string[]} names
 * @param {readonly { readonly cells: string[], readonly line: number }[]} records
 */
function rowsOf(names, records) {
  /** @type {Table["rows"]} */
  const rows = [];
  /** @type {Table["faults"]} */
  const wrong = [];
  /** @type {Set<string>} */
  const ids = new Set();
  for (const { cells, line } of records) {
    if (wrong.length >= MAX_FAULTS) break;
    const isCut = cells.length < names.length;
    if (isCut || cells.slice(names.length).some((cell) => cell !== "")) {
      const message = `Columns: ${names.length} in the header, ${cells.length} in this row.`;
      wrong.push({ line, message });
      continue;
    }
    const row = Object.fromEntries(names.map((name, at) => [name, cells[at] ?? ""]));
    const id = customIdOf(row, rows.length + 1);
    if (ids.has(id)) wrong.push({ line, message: `The id ${id} is the same as on a line before.` });
    ids.add(id);
    rows.push(row);
  }
  return { rows, wrong };
}
