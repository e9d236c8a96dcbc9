/** Writes results as CSV (RFC 4180), the header first. */
import { csvLine } from "../contract/csv.ts";
import { COLUMNS } from "./columns.ts";
import type { ResultRow } from "./result-row.ts";

/** Rows gather to this size before they are passed on. */
const PIECE_CHARACTERS = 64 * 1024;

export class CsvTable {
  #gathered: string[] = [csvLine(COLUMNS.map(({ name }) => name))];
  #length = 0;

  add(row: ResultRow): readonly Buffer[] {
    const line = csvLine(COLUMNS.map(({ name }) => row[name]));
    this.#gathered.push(line);
    this.#length += line.length;
    return this.#length < PIECE_CHARACTERS ? [] : this.end();
  }

  end(): readonly Buffer[] {
    const text = this.#gathered.join("");
    this.#gathered = [];
    this.#length = 0;
    return text === "" ? [] : [Buffer.from(text)];
  }
}
