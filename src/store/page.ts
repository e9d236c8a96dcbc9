/** A page of a list, newest first unless asked otherwise. */
export interface Page<T> {
  readonly data: readonly T[];
  readonly hasMore: boolean;
}

/** The rows that one statement reads where all of them are wanted: some milliseconds. Other work goes on between two pages. */
export const ROWS_PAGE = 1_000;

/** Cuts a long list into pages of so many things for one statement each. */
export function* inPages<T>(things: readonly T[], size: number): Generator<T[]> {
  for (let from = 0; from < things.length; from += size) yield things.slice(from, from + size);
}

/** Makes a page of rows that were read with one more than it may have. */
export const pageOf = <Row, T>(
  rows: readonly Row[],
  limit: number,
  fromRow: (row: Row) => T,
): Page<T> => ({ data: rows.slice(0, limit).map(fromRow), hasMore: rows.length > limit });
