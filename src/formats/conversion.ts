/** Converts result files into tables, which have a row for each line. */

import type { TableFormat } from "../contract/results.ts";
import { LineSplitter, type SplitLine } from "../text/split.ts";
import { CsvTable } from "./csv.ts";
import { NotAResultRow, type ResultRow, readResultRow } from "./result-row.ts";

/** A table that is written row by row. */
export interface Table {
  /** Takes a row, and returns the bytes that are ready. */
  add(row: ResultRow): readonly Buffer[];
  end(): readonly Buffer[];
}

/** No row is longer: an answer has at most 64 MiB, and a longer text does not fit into memory as a string. */
const MAX_ROW_BYTES = 256 * 1024 * 1024;

/** Turns the bytes of a result file into the bytes of a table, piece by piece, in constant memory. */
export class Conversion {
  readonly #splitter = new LineSplitter(MAX_ROW_BYTES, { start: 0, firstLine: 1 });
  readonly #table: Table;

  constructor(table: Table) {
    this.#table = table;
  }

  /** Throws {@link NotAResultRow}, with the number of the line, for a line that is no row. */
  push(piece: Buffer): readonly Buffer[] {
    return this.#rows(this.#splitter.push(piece));
  }

  end(): readonly Buffer[] {
    return [...this.#rows(this.#splitter.end()), ...this.#table.end()];
  }

  #rows(lines: Iterable<SplitLine>): Buffer[] {
    const ready: Buffer[] = [];
    for (const line of lines) ready.push(...this.#table.add(rowOf(line)));
    return ready;
  }
}

function rowOf({ bytes, number }: SplitLine): ResultRow {
  try {
    if (bytes !== null) return readResultRow(bytes);
  } catch (error) {
    if (!(error instanceof NotAResultRow)) throw error;
  }
  throw new NotAResultRow(`line ${number} of the results is not JSON`);
}

/** The writer of Parquet is loaded when it is needed. */
export async function openConversion(format: TableFormat): Promise<Conversion> {
  if (format === "csv") return new Conversion(new CsvTable());
  const { ParquetTable } = await import("./parquet.ts");
  return new Conversion(new ParquetTable());
}
