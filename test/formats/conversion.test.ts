import { spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import Papa from "papaparse";
import { expect, test } from "vitest";
import { COLUMNS } from "../../src/formats/columns.ts";
import { openConversion } from "../../src/formats/conversion.ts";
import { converted } from "../../src/formats/converted.ts";
import { NotAResultRow } from "../../src/formats/result-row.ts";
import { queryTable } from "../support/duckdb.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { piecesOf } from "../support/json-arbitraries.ts";
import { temporaryFolder } from "../support/store-builders.ts";

const folder = forAllTests(temporaryFolder("batchd-tables-")).path;

const LONG_ROWS = new URL("../support/fixtures/convert-long-rows.ts", import.meta.url);
const UNENDING = new AbortController().signal;

interface Answer {
  readonly customId: string;
  readonly text: string;
  readonly tokens: number;
  readonly model?: string;
  readonly finishReason?: string;
  readonly failure?: Failure | null;
}

interface Failure {
  readonly code: string;
  readonly message: string;
}

/** Returns one row of a result file; the number of its line is in its id. */
const rowOf = (
  { customId, text, tokens, model, finishReason, failure = null }: Answer,
  at: number,
): string =>
  `${JSON.stringify({
    id: `batch_req_${(at + 1).toString(16).padStart(8, "0")}${"0".repeat(24)}`,
    custom_id: customId,
    response: {
      status_code: failure === null ? 200 : 400,
      body: {
        ...(failure === null
          ? { choices: [{ message: { content: text }, finish_reason: finishReason }] }
          : { error: failure }),
        model,
        usage: { prompt_tokens: tokens, completion_tokens: 1 },
      },
    },
    error: null,
  })}\n`;

/** Returns the cells of its row, in the order of the columns. */
function cellsOf(answer: Answer, at: number): readonly (string | null)[] {
  const { customId, text, tokens, model = null, finishReason = null, failure = null } = answer;
  const status = failure === null ? "200" : "400";
  const answered = failure === null ? [text, null, finishReason] : [null, null, null];
  const counts = [tokens, 0, 1, 0, tokens + 1].map(String);
  const { code = null, message = null } = failure ?? {};
  return [customId, String(at + 1), status, ...answered, model, ...counts, code, message];
}

const NASTY = [
  "plain",
  "",
  '"',
  '""',
  "a,b",
  "a\nb",
  "a\r\nb",
  "\r",
  "'",
  "'=1",
  " lead",
  "trail ",
  "=1+1",
  "+1",
  "-1",
  "@x",
  "\tx",
  "\ud800",
  "💥",
  "é",
  "\u2028",
  "NULL",
  "null",
  "007",
  "NaN",
  "-Infinity",
  "1e309",
  "9007199254740993",
  "\n=1",
  " =1",
  "\u0000＝",
  "\u200b\u3000+1",
  "\ud800=",
  "＝1+1",
  "＋1",
  "－1",
  "＠x",
  "2024-01-01",
  "true",
  "\u0001",
  "a\ufeffb",
  "\\",
  "\\n",
];

/** Whether a spreadsheet that drops what cannot be seen would take the text for a formula. */
function isFormula(text: string): boolean {
  const [first = ""] = [...text].filter((sign) => !/[\p{Z}\p{C}]/u.test(sign));
  return ["=", "+", "-", "@", "＝", "＋", "－", "＠"].includes(first) || /^[\t\r\n]/.test(text);
}

const isNumber = (at: number) => COLUMNS[at]?.type === "integer";

/** Returns what a table says of a row: formulas are escaped in CSV, and half characters cannot be written. */
const shown = (answer: Answer, row: number, isCsv: boolean) =>
  cellsOf(answer, row).map((cell, at) =>
    cell === null || isNumber(at)
      ? cell
      : `${isCsv && isFormula(cell) ? "'" : ""}${cell}`.toWellFormed(),
  );

const anyText = fc.oneof(fc.constantFrom(...NASTY), fc.string({ unit: "binary" }));
const anything = fc.record({
  customId: anyText,
  text: anyText,
  // A number above it is no number of tokens (`usage.ts`).
  tokens: fc.nat({ max: 999_999_999 }),
  model: anyText,
  finishReason: anyText,
  failure: fc.option(fc.record({ code: anyText, message: anyText }), { freq: 2 }),
});

test("CSV has every value of every row, whatever it holds and however the rows come", async () => {
  await fc.assert(
    fc.asyncProperty(
      fc
        .array(anything, { maxLength: 8 })
        .chain((answers) =>
          fc.tuple(fc.constant(answers), piecesOf(Buffer.from(answers.map(rowOf).join("")))),
        ),
      async ([answers, pieces]) => {
        const conversion = await openConversion("csv");
        const table = [...pieces.flatMap((piece) => conversion.push(piece)), ...conversion.end()];
        const { data } = Papa.parse<Record<string, string>>(Buffer.concat(table).toString(), {
          header: true,
          skipEmptyLines: true,
          newline: "\r\n",
        });
        // A reader of CSV has no null.
        const cells = answers.map((answer, at) =>
          shown(answer, at, true).map((cell) => cell ?? ""),
        );
        expect(data.map((row) => Object.values(row))).toEqual(cells);
      },
    ),
    { numRuns: 200 },
  );
});

async function* inPieces(text: string): AsyncGenerator<Buffer> {
  const bytes = Buffer.from(text);
  for (let at = 0; at < bytes.length; at += 65_536) yield bytes.subarray(at, at + 65_536);
}

async function fileOf(format: "csv" | "parquet", rows: string): Promise<string> {
  const path = join(folder, `${rows.length}.${format}`);
  const pieces: Buffer[] = [];
  for await (const piece of converted(inPieces(rows), format, UNENDING)) pieces.push(piece);
  writeFileSync(path, Buffer.concat(pieces));
  return path;
}

const HEADER =
  "header = true, quote = '\"', escape = '\"', allow_quoted_nulls = false, max_line_size = 10000000";

test.each(["csv", "parquet"] as const)(
  "DuckDB reads every value of every row of a table in %s",
  async (format) => {
    const answers: Answer[] = [
      ...fc.sample(anything, { numRuns: 300, seed: 7 }),
      ...NASTY.map((text) => ({ customId: text, text, tokens: 1 })),
    ];
    // DuckDB's reader of CSV ends a text at a NUL, and its client drops a mark of the byte order at the beginning.
    const readable = JSON.parse(
      JSON.stringify(answers, (_key, value: unknown) =>
        typeof value === "string" ? value.replaceAll("\0", "?").replace(/^\ufeff/, "?") : value,
      ),
    ) as Answer[];
    const path = await fileOf(format, readable.map(rowOf).join(""));
    const source = format === "csv" ? `read_csv('${path}', ${HEADER})` : `'${path}'`;
    const rows = await queryTable(`select * from ${source} order by line`);
    expect(Object.keys(rows[0] ?? {})).toEqual(COLUMNS.map(({ name }) => name));
    expect(rows.map((row) => Object.values(row))).toEqual(
      readable.map((answer, at) => shown(answer, at, format === "csv")),
    );
  },
);

test("a Parquet file has typed columns, and null where a row has nothing", async () => {
  const failed = `{"id":"x","custom_id":null,"response":null,"error":{"code":"c","message":"m"}}\n`;
  const path = await fileOf("parquet", rowOf({ customId: "a", text: "", tokens: 1 }, 0) + failed);
  const types = await queryTable(`describe select * from '${path}'`);
  expect(types.map((row) => row["column_type"])).toEqual(
    COLUMNS.map(({ type }) => (type === "text" ? "VARCHAR" : "BIGINT")),
  );
  const [, row = {}] = await queryTable(`select * from '${path}'`);
  expect(row).toMatchObject({ error_code: "c", error_message: "m" });
  const others = Object.entries(row).filter(([name]) => !name.startsWith("error_"));
  expect(others.map(([, value]) => value)).toEqual(others.map(() => null));
});

test("a table of no rows is a table", async () => {
  const parquet = await fileOf("parquet", "");
  expect(await queryTable(`select * from '${parquet}'`)).toEqual([]);
  const csv = await fileOf("csv", "");
  expect(await queryTable(`select * from read_csv('${csv}', ${HEADER})`)).toEqual([]);
});

test("rows of 32 MB and many groups of rows are read back", async () => {
  const long = "x".repeat(32 * 1024 * 1024);
  const answers = Array.from({ length: 3_000 }, (_, i) => ({
    customId: `line-${i}`,
    text: i === 1_500 ? long : `Answer ${i}`,
    tokens: i,
  }));
  const path = await fileOf("parquet", answers.map(rowOf).join(""));
  const [sums] = await queryTable(
    `select count(*) as rows, sum(input_tokens) as tokens, max(length(text)) as longest, count(distinct custom_id) as ids from '${path}'`,
  );
  expect(sums).toEqual({
    rows: "3000",
    tokens: String((3_000 * 2_999) / 2),
    longest: String(long.length),
    ids: "3000",
  });
  const [groups] = await queryTable(
    `select count(distinct row_group_id) as groups from parquet_metadata('${path}')`,
  );
  expect(Number(groups?.["groups"])).toBeGreaterThan(1);
});

test("groups of rows are bounded whatever text of an answer is long", async () => {
  const long = "m".repeat(1024 * 1024);
  const rows = Array.from({ length: 40 }, (_, at) => ({
    id: "x",
    custom_id: `line-${at}`,
    response: { status_code: 200, body: { model: at % 2 === 0 ? long : "m" } },
    error: at % 2 === 0 ? null : { code: "c", message: long },
  }));
  const path = await fileOf("parquet", rows.map((row) => `${JSON.stringify(row)}\n`).join(""));
  const [groups] = await queryTable(
    `select count(distinct row_group_id) as groups from parquet_metadata('${path}')`,
  );
  expect(Number(groups?.["groups"])).toBeGreaterThan(3);
});

test("a line that is no row ends the table with an error that names it", async () => {
  const rows = `${rowOf({ customId: "a", text: "b", tokens: 1 }, 0)}no JSON\n`;
  await expect(fileOf("csv", rows)).rejects.toThrow("line 2 of the results is not JSON");
  const conversion = await openConversion("csv");
  expect(() => conversion.push(Buffer.from("{\n"))).toThrow(NotAResultRow);
});

test("a failing source ends the table with its error", async () => {
  async function* failing(): AsyncGenerator<Buffer> {
    yield Buffer.from(rowOf({ customId: "a", text: "b", tokens: 1 }, 0));
    throw new Error("the disk is gone");
  }
  const table = converted(failing(), "parquet", UNENDING);
  const read = async () => {
    for await (const _ of table);
  };
  await expect(read()).rejects.toThrow("the disk is gone");
});

test("a table ends with its reader, also in the middle of a row", async () => {
  const leaving = new AbortController();
  const row = rowOf({ customId: "a", text: "b".repeat(1_000_000), tokens: 1 }, 0);
  const first = converted(inPieces(row), "csv", leaving.signal).next();
  leaving.abort(new Error("the reader is gone"));
  await expect(first).rejects.toThrow("the reader is gone");
});

test("a row of millions of quotes, or of messages, takes few bytes for each", () => {
  const command = ["--max-old-space-size=80", LONG_ROWS.pathname];
  const { stdout, status } = spawnSync(process.execPath, command);
  const lines = ['quotes: 6000028 "a",,200,,"[""a"",""', 'outputs: 22 "a",,200,"b",,,,,,,,'];
  expect([`${stdout}`.trim().split("\n"), status]).toEqual([lines, 0]);
});
