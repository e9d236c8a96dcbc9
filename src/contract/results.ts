/** The bounds of the routes that read the finished lines of a batch. */
export const RESULT_LIMITS = {
  afterLine: { min: 0, max: 2 ** 32 - 1 },
  limit: { min: 1, max: 1_000_000 },
  waitSeconds: { min: 0, max: 60 },
} as const;

/** The formats of results besides JSON lines: tables with a row for each line. */
const TABLE_FORMATS = ["csv", "parquet"] as const;
export type TableFormat = (typeof TABLE_FORMATS)[number];

/** The formats of results; `jsonl` is the file as it is. */
export const RESULT_FORMATS = ["jsonl", ...TABLE_FORMATS] as const;
export type ResultFormat = (typeof RESULT_FORMATS)[number];
