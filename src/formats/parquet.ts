/**
 * Writes results as Parquet. Rows gather in groups of bounded size. Memory holds one group, and the place of each group
 * for the footer, which is some kilobytes for each of them.
 */
import { constants, zstdCompressSync } from "node:zlib";
import { ByteWriter, ParquetWriter } from "hyparquet-writer";
import { COLUMNS, type Column } from "./columns.ts";
import type { ResultRow } from "./result-row.ts";

/** The limits of a group. Readers keep a whole group in memory, and want few of them. */
const GROUP = { maxRows: 50_000, maxCharacters: 8 * 1024 * 1024 } as const;
/** The cost of a row besides its texts. */
const ROW_CHARACTERS = 64;

/** A level that compresses at some 500 MB/s. */
const COMPRESSION = { params: { [constants.ZSTD_c_compressionLevel]: 1 } };

const TYPES = {
  text: { type: "BYTE_ARRAY", converted_type: "UTF8", logical_type: { type: "STRING" } },
  integer: { type: "INT64" },
} as const;

const SCHEMA = [
  { name: "root", num_children: COLUMNS.length },
  ...COLUMNS.map(({ name, type }) => ({
    name,
    repetition_type: "OPTIONAL" as const,
    ...TYPES[type],
  })),
];

type Value = string | number | bigint | null;
const emptyColumns = (): Value[][] => COLUMNS.map(() => []);

export class ParquetTable {
  readonly #bytes = new ByteWriter();
  readonly #writer = new ParquetWriter({
    writer: this.#bytes,
    schema: SCHEMA,
    codec: "ZSTD",
    compressors: { ZSTD: (input) => zstdCompressSync(input, COMPRESSION) },
    createdBy: "batchd",
  });
  #values = emptyColumns();
  #rowCount = 0;
  #characters = 0;

  add(row: ResultRow): readonly Buffer[] {
    for (const [at, { name }] of COLUMNS.entries()) {
      const value = row[name];
      this.#values[at]?.push(typeof value === "number" ? BigInt(value) : value);
      // A hostile answer may have any of its texts as long as it likes, such as the name of its model.
      if (typeof value === "string") this.#characters += value.length;
    }
    this.#rowCount++;
    this.#characters += ROW_CHARACTERS;
    const isFull = this.#rowCount >= GROUP.maxRows || this.#characters >= GROUP.maxCharacters;
    return isFull ? this.#writeGroup() : [];
  }

  end(): readonly Buffer[] {
    const rest = this.#rowCount === 0 ? [] : this.#writeGroup();
    // It writes to memory, so it is done when it returns.
    void this.#writer.finish();
    return [...rest, this.#take()];
  }

  #writeGroup(): readonly Buffer[] {
    const columnData = COLUMNS.map((column, at) => columnOf(column, this.#values[at] ?? []));
    void this.#writer.write({ columnData, rowGroupSize: this.#rowCount });
    this.#values = emptyColumns();
    this.#rowCount = 0;
    this.#characters = 0;
    return [this.#take()];
  }

  /** Returns what was written, and empties the writer. Its offset in the file goes on. */
  #take(): Buffer {
    const taken = Buffer.from(this.#bytes.getBytes());
    this.#bytes.index = 0;
    return taken;
  }
}

/** Texts have the bounds of each group only where a reader would filter by them. */
const FILTERED: ReadonlySet<keyof ResultRow> = new Set(["custom_id", "line", "status"]);

function columnOf({ name }: Column, data: Value[]) {
  // Answers hardly ever repeat, so a dictionary of them would be built in vain.
  const isAnswer = name === "text" || name === "json";
  const encoding = isAnswer ? { encoding: "PLAIN" as const } : {};
  return { name, data, statistics: FILTERED.has(name), ...encoding };
}
